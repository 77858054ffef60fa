"""`trioha archive` as a process: killed at any time, stopped, and replaced."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.archive.support import Log, archived, reader_of
from tests.store.support import copy_store
from trioha.archive.objects import ObjectFolder
from trioha.cli import main
from trioha.cli.archive import parse_duration_s
from trioha.errors import ConfigError

pytestmark = pytest.mark.process
DEADLINE_S = 75.0


@contextmanager
def archiving(log: Log, url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process, with one JSON object a line."""
    command = [sys.executable, "-m", "trioha", "archive", str(log.store), "--to", url, "--json", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def next_step(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr is not None else ""
    step: dict[str, Any] = json.loads(line)
    return step


def wait_until(process: subprocess.Popen[str], offset: int) -> dict[str, Any]:
    """The first step that has archived everything up to `offset`."""
    while True:
        step = next_step(process)
        if (step["archivedOffset"] or 0) >= offset:
            return step


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "store")
    log.append(50)
    log.config(topics='{"a":1}')
    return log


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


@pytest.mark.timeout(300)
def test_an_archiver_that_is_killed_again_and_again_leaves_no_hole(log: Log, url: str) -> None:
    for _ in range(4):
        with archiving(log, url, "--follow", "--interval", "0.01s") as process:
            log.append(20)
            wait_until(process, log.end_offset)
            for _ in range(3):
                log.append(20)
                next_step(process)
            process.kill()
            process.wait(DEADLINE_S)
    with archiving(log, url) as process:
        wait_until(process, log.end_offset)
        assert process.wait(DEADLINE_S) == 0
    folder = ObjectFolder.open(url)
    assert archived(folder) == (0, log.data())
    head = reader_of(folder).head
    assert [one.reason for one in head.generations] == ["first archive"]
    assert head.writer.epoch == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(log: Log, url: str, number: signal.Signals) -> None:
    with archiving(log, url, "--follow") as process:
        wait_until(process, log.end_offset)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 0
    assert archived(ObjectFolder.open(url)) == (0, log.data())


def test_an_archiver_that_was_replaced_says_so_and_ends(log: Log, url: str) -> None:
    with archiving(log, url, "--follow", "--interval", "0.01s") as first:
        wait_until(first, log.end_offset)
        with archiving(log, url) as second:
            wait_until(second, log.end_offset)
            assert second.wait(DEADLINE_S) == 0
        log.append()
        _, errors = first.communicate(timeout=DEADLINE_S)
        assert first.returncode == 2
    assert "another writer archives here" in errors
    assert f"{log.store}, epoch 2, has created a newer head" in errors
    assert len(errors.strip().splitlines()) == 1


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["archive", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_store_of_rocketmq_is_archived_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    store = copy_store("store-4.9.7", tmp_path)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    code, out, err = run(capsys, str(store), "--to", url, "--cluster", "C", "--broker", "a")
    assert code == 0
    assert out.startswith("archived up to offset 134091: 3 new objects, 134,091 bytes of the log became 1")
    assert err.endswith(": first archive\n")
    head = reader_of(ObjectFolder.open(url)).head
    assert (head.cluster_name, head.broker_name) == ("C", "a")
    log = b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
    assert archived(ObjectFolder.open(url)) == (0, log[:134091])
    reader = reader_of(ObjectFolder.open(url))
    (metadata,) = reader.metadata(reader.generation())
    files = reader.metadata_files(metadata).files
    assert files == {
        path.name: path.read_text() for path in (store / "config").iterdir() if path.suffix == ".json"
    }
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_log_in_another_folder_is_archived_with_the_stores_metadata(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """storePathCommitLog of another disk."""
    store = copy_store("store-4.9.7", tmp_path)
    other = tmp_path / "other-disk"
    (store / "commitlog").rename(other)
    code, out, _ = run(capsys, str(store), "--to", url, "--commit-log", str(other))
    assert code == 0
    assert out.startswith("archived up to offset 134091: ")
    folder = ObjectFolder.open(url)
    log = b"".join(path.read_bytes() for path in sorted(other.iterdir()))
    assert archived(folder) == (0, log[:134091])
    reader = reader_of(folder)
    assert len(list(reader.metadata(reader.generation()))) == 1
    code, _, err = run(capsys, str(store), "--to", url, "--commit-log", str(tmp_path / "none"))
    assert code == 2
    assert err == f"trioha: {tmp_path / 'none'}: there is no such folder\n"


def test_damage_is_exit_code_1(log: Log, capsys: pytest.CaptureFixture[str], url: str) -> None:
    end = log.end_offset
    log.append(2)
    log.write(end + 90, b"!")
    code, _, err = run(capsys, str(log.store), "--to", url)
    assert code == 1
    assert f"no valid record at offset {end}: the body's CRC" in err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--to", "ftp://x"), "ftp://x: not a URL of an object storage"),
        (("--to", "file:///dev/null/x"), "file:///dev/null/x"),
        (("--to", "file:///tmp", "--interval", "10"), "--interval: '10' is not a duration; write 10s"),
        (("--to", "file:///tmp", "--keep", "0d"), "--keep: '0d' is not a duration"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    log: Log, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], reason: str
) -> None:
    code, out, err = run(capsys, str(log.store), *options)
    assert code == 2
    assert reason in err
    assert len(err.strip().splitlines()) == 1
    assert not out


def test_a_store_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    code, _, err = run(capsys, str(tmp_path / "none"), "--to", url)
    assert code == 2
    assert "there is no such folder" in err


def test_durations() -> None:
    texts = ("10s", "1.5m", "12h", "30d", "4w")
    assert [parse_duration_s(text, key="--keep") for text in texts] == [10, 90, 43_200, 2_592_000, 2_419_200]
    for text in ("", "d", "-1d", "1y", "1 d", "9" * 12 + "s"):
        with pytest.raises(ConfigError):
            parse_duration_s(text, key="--keep")
