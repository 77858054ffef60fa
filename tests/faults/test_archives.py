"""The archive of a cluster's node is compared with its store: differences, and archivers that cause them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from attrs import evolve

from tests.faults.archives import ArchivePlan, config_differences, log_differences
from tests.faults.cluster import Cluster
from tests.faults.faults import MASTER
from tests.faults.plan import make_plan
from tests.faults.planted import Defect
from tests.faults.test_metadata import plan_of

WITHIN_S = 60.0
FILE_BYTES = 16


def make_store(root: Path, *files: bytes, **config: str) -> Path:
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    for number, data in enumerate(files):
        (root / "commitlog" / f"{number * FILE_BYTES:020d}").write_bytes(data.ljust(FILE_BYTES, b"\0"))
    for name, text in config.items():
        (root / "config" / f"{name}.json").write_text(text)
    return root


def test_a_restored_log_is_compared_byte_by_byte(tmp_path: Path) -> None:
    def differences(name: str, *files: bytes, end: int = 20) -> list[str]:
        restored = make_store(tmp_path / name, *files)
        return [
            text.replace(f"{tmp_path}/", "")
            for text in log_differences(
                restored, store, start=0, end=end, expected_end=20, file_bytes=FILE_BYTES
            )
        ]

    store = make_store(tmp_path / "store", b"0123456789abcdef", b"ghij")
    assert differences("same", b"0123456789abcdef", b"ghij") == []
    assert differences("other", b"0123456789abcdeX", b"ghij") == [
        "other differs from store from offset 15 on"
    ]
    assert differences("longer", b"0123456789abcdef", b"ghijk") == ["longer has bytes beyond offset 20"]
    assert differences("shorter", b"0123456789abcdef", b"ghi", end=19) == [
        "shorter has offsets 0 to 19, store has 0 to 20"
    ]


def test_restored_config_files_are_compared(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", topics='{"a": 1}', consumerOffset='{"b": 2}')
    assert (
        config_differences(make_store(tmp_path / "same", topics='{"a":1}', consumerOffset='{"b":2}'), store)
        == []
    )
    other = make_store(tmp_path / "other", topics='{"a":2}')
    assert [text.replace(f"{tmp_path}/", "") for text in config_differences(other, store)] == [
        "other/config/topics.json is not that of store",
        "other/config/consumerOffset.json is not that of store",
    ]


def test_half_of_all_plans_have_an_archive() -> None:
    plans = [make_plan(seed) for seed in range(400)]
    archives = [plan.archive for plan in plans if plan.archive is not None]
    assert 150 < len(archives) < 250
    assert {one.target for one in archives} == {"file", "s3"}
    assert {one.node for one in archives} == {MASTER, "slave-1", "slave-2"}
    assert any(plan.archive and plan.loses_log for plan in plans)


@pytest.mark.process
@pytest.mark.parametrize(
    ("defect", "found"),
    [
        (None, ""),
        (Defect.ARCHIVED_BYTE_CHANGED, "differs from"),
        (Defect.ARCHIVED_OBJECT_LOST, "there is no such object"),
    ],
)
def test_an_archiver_that_changes_a_byte_or_loses_an_object_is_found(
    tmp_path: Path, defect: Defect | None, found: str
) -> None:
    archive = ArchivePlan(node=MASTER, target="file", kills_at_s=(), seed=1)
    plan = evolve(plan_of(role="ASYNC_MASTER"), archive=archive)
    programs = {} if defect is None else {"archiver": defect.program}
    with Cluster(plan, tmp_path, programs=programs) as cluster:
        cluster.begin()
        deadline_s = time.monotonic() + WITHIN_S
        while len(list((tmp_path / "archive" / "log").glob("*/*"))) < 3:
            assert time.monotonic() < deadline_s
            cluster.pause(0.05)
        end_offset = cluster.settle()
        cluster.end()
        try:
            violations = cluster.finish_archive(end_offset)
        except AssertionError as problem:
            violations = [str(problem)]
    assert cluster.violations == []
    if defect is None:
        assert violations == []
    else:
        assert len(violations) == 1
        assert found in violations[0]
