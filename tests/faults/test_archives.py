"""The archive of a node is compared with its store: differences, and archivers that cause them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.archives import ArchivePlan, NodeArchive, config_differences, log_differences
from tests.faults.planted import archived_byte_changed, archived_object_lost
from tests.faults.support import FILE_BYTES, fill
from tests.simulation.planting import Defect


def make_store(root: Path, *files: bytes, **config: str) -> Path:
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    for number, data in enumerate(files):
        (root / "commitlog" / f"{number * 16:020d}").write_bytes(data.ljust(16, b"\0"))
    for name, text in config.items():
        (root / "config" / f"{name}.json").write_text(text)
    return root


def test_a_restored_log_is_compared_byte_by_byte_and_config_files_by_what_they_say(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", b"0123456789abcdef", b"ghij", topics='{"a": 1}')
    for second, end, found in (
        (b"ghij", 20, []),
        (b"gXij", 20, ["restored differs from store from offset 17 on"]),
        (b"ghijk", 20, ["restored has bytes beyond offset 20"]),
        (b"ghi", 19, ["restored has offsets 0 to 19, store has 0 to 20"]),
    ):
        restored = make_store(tmp_path / second.decode() / "restored", b"0123456789abcdef", second)
        differences = log_differences(restored, store, start=0, end=end, expected_end=20, file_bytes=16)
        parents = (f"{restored.parent}/", f"{tmp_path}/")
        assert [text.replace(parents[0], "").replace(parents[1], "") for text in differences] == found
    assert config_differences(make_store(tmp_path / "same", topics='{"a":1}'), store, clamped=0) == []
    for text in ('{"a":2}', '{"a":0}'):
        other = make_store(tmp_path / text / "other", topics=text)
        (difference,) = config_differences(other, store, clamped=0)
        assert difference.endswith("config/topics.json is not that of " + str(store))


def test_only_offsets_that_a_restore_says_to_have_clamped_are_lower(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", consumerOffset='{"offsetTable":{"t@g":{0:7,1:5}}}')
    for offsets, clamped, is_right in (
        ("0:3,1:5", 1, True),
        ("0:3,1:5", 0, False),
        ("0:3,1:4", 1, False),
        ("0:8,1:5", 1, False),
        ("0:7", 1, False),
    ):
        restored = make_store(
            tmp_path / f"{offsets} {clamped}", consumerOffset=f'{{"offsetTable":{{"t@g":{{{offsets}}}}}}}'
        )
        assert (config_differences(restored, store, clamped=clamped) == []) is is_right, offsets


@pytest.mark.process
@pytest.mark.parametrize(
    ("defect", "found"),
    [
        (None, ""),
        (archived_byte_changed, "differs from"),
        (archived_object_lost, "there is no such object"),
    ],
)
def test_an_archiver_that_changes_a_byte_or_loses_an_object_is_found(
    tmp_path: Path, defect: Defect | None, found: str
) -> None:
    _, end_offset = fill(tmp_path / "store")
    archive = NodeArchive(
        ArchivePlan(node="master", target="file", kills_at_s=(), seed=1),
        store=tmp_path / "store",
        folder=tmp_path,
        program=() if defect is None else tuple(defect.program),
    )
    try:
        violations = archive.finish(end_offset=end_offset, file_bytes=FILE_BYTES)
    except AssertionError as problem:
        violations = [str(problem)]
    finally:
        archive.close()
    assert len(violations) == (defect is not None)
    assert found in "".join(violations)
