"""`trioha restore` as a command: options, results, refusals."""

import json
from pathlib import Path

import pytest

from tests.archive.building import GENERATION, Moment, Put, build_from, made_log
from tests.s3 import start_obstore
from trioha.archive.errors import ArchiveError
from trioha.archive.restore import Restore
from trioha.cli import EXIT_INTERRUPTED, main
from trioha.store.lock import RESTORE_MARKER

FILE_BYTES = 1000
ENTRIES = made_log(
    [Put(store_ms=1_700_000_000_000 + 1000 * number) for number in range(20)], file_bytes=FILE_BYTES
)


@pytest.fixture(autouse=True, scope="module")
def obstore_runs():
    """Descriptors of obstore's runtime are open before any test counts."""
    start_obstore()


@pytest.fixture
def url(tmp_path):
    url = f"file://{tmp_path}/archive"
    files = {"topics.json": "{}", "consumerOffset.json": '{"offsetTable":{"Orders@g":{0:30}}}'}
    moment = Moment(taken_ms=1_700_000_005_000, offset=ENTRIES[5].end_offset, files=files)
    build_from(url, ENTRIES, file_bytes=FILE_BYTES, object_bytes=400, metadata=[moment])
    return url


def test_a_restore_says_what_it_made(tmp_path, url, capsys):
    into = tmp_path / "store"
    assert main(["restore", url, "--into", str(into)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0].startswith(
        f"{into}: restored offsets 0 to {ENTRIES[-1].end_offset} of broker-a, generation {GENERATION};"
        " its last record was stored at "
    )
    assert "20 records checked and written, in 3 log files\n" in out
    assert ": consumerOffset.json, topics.json\n" in out
    assert "1 offsets of groups or delay levels were beyond the restored queues" in out
    assert f"storePathRootDir={into} and mappedFileSizeCommitLog=1000; the first start builds" in out


def test_a_restore_to_a_time_as_json(tmp_path, url, capsys):
    into = tmp_path / "store"
    time = "2023-11-14T22:13:27Z"
    assert main(["restore", url, "--into", str(into), "--to-time", time, "--json", "--build"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["endOffset"] == ENTRIES[7].end_offset
    assert found["lastStoreTimestamp"] == 1_700_000_007_000
    assert found["recordsWritten"] == 8
    assert found["metadata"]["takenTimestamp"] == 1_700_000_005_000
    assert found["offsetsClamped"] == 1
    assert found["built"] is True
    assert (into / "consumequeue/Orders/0").is_dir()


def test_options_that_cannot_be_used_are_refused_in_one_line(tmp_path, url, refusal, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, problem in (
        ([], "--into: is missing; name a new folder, or use --list"),
        (["--into", "x", "--to-offset", "1", "--latest"], "give only one of"),
        (["--into", "x", "--to-offset", "-1"], "'-1' is not an offset"),
        (["--into", "x", "--to-offset", "many"], "'many' is not an offset"),
        (["--into", "x", "--to-time", "yesterday"], "'yesterday' is not a time"),
        (["--into", "x", "--to-offset", "3"], "no record ends at or before offset 3"),
        (["--into", "x", "--generation", "9"], f"no generation 9; there are {GENERATION}"),
    ):
        assert problem in refusal("restore", url, *arguments)
        assert not (tmp_path / "x").exists()


def test_an_error_that_may_pass_says_how_to_go_on(tmp_path, url, capsys, monkeypatch):
    def cut(*_: object, **__: object) -> None:
        raise ArchiveError("the server is gone", url=url, key="log/x", is_transient=True)

    monkeypatch.setattr(Restore, "run", cut)
    assert main(["restore", url, "--into", str(tmp_path / "store")]) == 2
    assert capsys.readouterr().err == (
        f"trioha: {url}/log/x: the server is gone; run the same command again: it keeps what is whole\n"
    )


def test_the_list_shows_generations_and_moments(url, capsys):
    assert main(["restore", url, "--list"]) == 0
    out, _ = capsys.readouterr()
    assert "archive of DefaultCluster/broker-a, written by host:/store (epoch 1)" in out
    assert GENERATION in out
    assert str(ENTRIES[-1].end_offset) in out
    assert main(["restore", url, "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["generations"][0] == {
        "generation": GENERATION,
        "beganTimestamp": 1,
        "reason": "first archive",
        "mappedFileSizeCommitLog": FILE_BYTES,
        "firstOffset": 0,
        "endOffset": ENTRIES[-1].end_offset,
        "records": 20,
        "firstStoreTimestamp": 1_700_000_000_000,
        "lastStoreTimestamp": 1_700_000_019_000,
        "logBytes": ENTRIES[-1].end_offset,
        "objects": found["generations"][0]["objects"],
        "objectBytes": ENTRIES[-1].end_offset,
        "metadata": [{"takenTimestamp": 1_700_000_005_000, "offset": ENTRIES[5].end_offset}],
    }


def test_an_empty_folder_is_refused(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["restore", f"file://{tmp_path}/empty", "--list"]) == 2
    assert "there is no archive" in capsys.readouterr().err


class Interrupting:
    """Writes the marker of a restore, and is Ctrl-C at the next file."""

    def __init__(self) -> None:
        self.has_interrupted = False

    def __call__(self, path: Path, data: bytes) -> None:
        if path.name != RESTORE_MARKER:
            self.has_interrupted = True
            raise KeyboardInterrupt
        path.write_bytes(data)


def test_a_step_before_each_start_restores_a_store_that_is_missing_and_leaves_one_that_is_there(
    tmp_path, url, capsys, monkeypatch
):
    into = tmp_path / "store"
    step = ["restore", url, "--into", str(into), "--if-missing", "--if-archived"]
    # Interrupted: the marker is there, and the same step goes on.
    with monkeypatch.context() as interrupted:
        interrupted.setattr("trioha.archive.restore._write_file", interrupt_after_marker := Interrupting())
        assert main(step) == EXIT_INTERRUPTED
    assert interrupt_after_marker.has_interrupted
    assert main(step) == 0
    assert f"{into}: restored offsets 0 to " in capsys.readouterr().out
    files = {path: path.read_bytes() for path in into.rglob("*") if path.is_file()}
    assert main(step) == 0
    assert capsys.readouterr().out == f"{into} has a store: nothing was restored\n"
    assert main([*step, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True, "restored": False, "reason": f"{into} has a store",
    }  # fmt: skip
    assert {path: path.read_bytes() for path in into.rglob("*") if path.is_file()} == files


def test_without_an_archive_a_step_before_the_first_start_leaves_the_folder_alone(tmp_path, capsys):
    into, nothing = tmp_path / "store", f"file://{tmp_path}/nothing"
    (tmp_path / "nothing").mkdir()
    assert main(["restore", nothing, "--into", str(into), "--if-missing", "--if-archived"]) == 0
    assert capsys.readouterr().out == f"{nothing}: there is no archive: nothing was restored\n"
    assert not into.exists()
    # A wrong URL is not taken for an empty archive unless that is wanted.
    assert main(["restore", nothing, "--into", str(into), "--if-missing"]) == 2
