"""`trioha archive` as a process: killed at any time, stopped, and replaced."""

import json
import signal
import time
from collections.abc import Callable

import pytest

from tests.archive.support import Log, archived, reader_of
from tests.archiver import ArchiverProcess, wait_archived
from tests.metrics.scraping import documented, families_of, parsed, scrape, value
from tests.ports import free_port
from tests.store.support import copy_store
from tests.waiting import wait_until
from trioha.archive.objects import ObjectFolder
from trioha.cli import main
from trioha.cli.archive_file import parse_duration_s
from trioha.errors import ConfigError

pytestmark = pytest.mark.process
Follow = Callable[[], ArchiverProcess]


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "store")
    log.append(50)
    log.config(topics='{"a":1}')
    return log


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/archive"


@pytest.fixture
def follow(log, url, tmp_path):
    """Starts `trioha archive --follow`."""
    started = []

    def start():
        log_file = tmp_path / f"archiver-{len(started)}.log"
        started.append(ArchiverProcess(log.store, url, log_file=log_file, interval="0.01s"))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_an_archiver_that_is_killed_again_and_again_leaves_no_hole(log, url, follow, capsys):
    for _ in range(3):
        archiver = follow()
        for _ in range(3):
            log.append(20)
            wait_archived(archiver, url, log.end_offset)
        log.append(20)
        archiver.kill()
    code, out, _ = run(capsys, str(log.store), "--to", url, "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["archivedOffset"] == log.end_offset
    folder = ObjectFolder.open(url)
    assert archived(folder) == (0, log.data())
    head = reader_of(folder).head
    assert [one.reason for one in head.generations] == ["first archive"]
    assert head.writer.epoch == 4


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_a_signal_ends_it_in_order(log, url, follow, number):
    archiver = follow()
    wait_archived(archiver, url, log.end_offset)
    archiver.signal(number)
    assert archiver.wait() == 0
    assert archived(ObjectFolder.open(url)) == (0, log.data())


@pytest.mark.full
def test_an_archiver_that_was_replaced_says_so_and_ends(log, url, follow, capsys):
    first = follow()
    wait_archived(first, url, log.end_offset)
    assert run(capsys, str(log.store), "--to", url)[0] == 0
    log.append()
    assert first.wait() == 2
    *_, error = first.log().strip().splitlines()
    assert "another writer archives here" in error
    assert f"{log.store}, epoch 2, has created a newer head" in error


def run(capsys, *arguments):
    code = main(["archive", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_store_of_rocketmq_is_archived_once(tmp_path, capsys, url):
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


def test_a_log_in_another_folder_is_archived_with_the_stores_metadata(tmp_path, capsys, url):
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


def test_damage_is_exit_code_1(log, capsys, url):
    end = log.end_offset
    log.append(2)
    log.write(end + 90, b"!")
    code, _, err = run(capsys, str(log.store), "--to", url)
    assert code == 1
    assert f"no valid record at offset {end}: the body's CRC" in err


def stores_file(path, *stores, head=""):
    """A file for --config."""
    tables = (f"[[archive.stores]]\nstore = '{store}'\nto = '{to}'\n" for store, to in stores)
    path.write_text("[archive]\n" + head + "".join(tables))
    return str(path)


def test_of_several_stores_a_damaged_one_ends_no_other(log, tmp_path, capsys):
    other = copy_store("store-4.9.7", tmp_path)
    end = log.end_offset
    log.append(2)
    log.write(end + 90, b"!")
    urls = [f"file://{tmp_path}/archive-{name}" for name in "ab"]
    file = stores_file(
        tmp_path / "stores.toml", (log.store, urls[0]), (other, urls[1]), head="keep = '36500d'\n"
    )
    code, out, err = run(capsys, "--config", file)
    assert code == 1
    assert f"{log.store}: " in err
    assert f"no valid record at offset {end}" in err
    assert f"{other}: archived up to offset 134091: 3 new objects" in out
    assert archived(ObjectFolder.open(urls[0])) == (0, log.data()[:end])
    assert archived(ObjectFolder.open(urls[1]))[1]
    code, out, _ = run(capsys, "--config", file, "--json")
    assert [json.loads(line)["url"] for line in out.splitlines()] == [urls[1]]


def test_a_file_of_stores_that_cannot_be_used_is_one_line(log, tmp_path, capsys, url):
    file = tmp_path / "stores.toml"
    good = stores_file(file, (log.store, url))
    content = file.read_text()
    for text, arguments, reason in (
        (content, ("--to", url), "--config: --to cannot be beside it"),
        ("", (), "has no table [archive]"),
        ("[archive]\n", (), "archive.stores: has not between 1 and 64 tables"),
        (content + "days = 1\n", (), "archive.stores[0].days: is unknown"),
        (content + "keep = 5\n", (), "archive.stores[0].keep: is not a text"),
        (content + "keep = '5'\n", (), "archive.stores[0].keep: '5' is not a duration"),
        (content + f"[[archive.stores]]\nto = '{url}'\n", (), "archive.stores[1].store: is missing"),
        (content + f"[[archive.stores]]\nstore = '/x'\nto = '{url}/'\n", (), "have the same to"),
    ):
        file.write_text(text)
        code, out, err = run(capsys, "--config", good, *arguments)
        assert (code, out) == (2, "")
        assert reason in err
        assert len(err.strip().splitlines()) == 1


def test_an_archiver_has_metrics(log, url, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    archiver = ArchiverProcess(
        log.store, url, log_file=tmp_path / "log", interval="0.01s", more=("--metrics", address)
    )
    try:
        wait_archived(archiver, url, log.end_offset)

        def found():
            status, _, text = scrape(address)
            return status == 200 and f'trioha_archiver_offset_bytes{{url="{url}"}} {log.end_offset}.0' in text

        wait_until(found, "the step is counted", within_s=60)
        metrics = parsed(scrape(address)[2])
        assert value(metrics, "trioha_archiver_state", url=url, state="running") == 1
        assert value(metrics, "trioha_archiver_lag_bytes", url=url) == 0
        assert abs(value(metrics, "trioha_archiver_complete_timestamp_seconds", url=url) - time.time()) < 3600
        served = {
            name: one for name, one in families_of(metrics).items() if name.startswith("trioha_archiver_")
        }
        assert served == {
            name: one for name, one in documented().items() if name.startswith("trioha_archiver_")
        }
        assert len(served) == 7
    finally:
        archiver.stop()


def test_what_cannot_be_used_is_one_line(log, tmp_path, capsys):
    for arguments, reason in (
        ((log.store, "--to", "ftp://x"), "ftp://x: not a URL of an object storage"),
        ((log.store, "--to", "file:///dev/null/x"), "file:///dev/null/x"),
        ((log.store, "--to", "file:///tmp", "--interval", "10"), "'10' is not a duration; write 10s"),
        ((log.store, "--to", "file:///tmp", "--keep", "0d"), "--keep: '0d' is not a duration"),
        ((tmp_path / "none", "--to", f"file://{tmp_path}/archive"), "there is no such folder"),
    ):
        code, out, err = run(capsys, *map(str, arguments))
        assert code == 2
        assert reason in err
        assert len(err.strip().splitlines()) == 1
        assert not out


def test_durations():
    texts = ("10s", "1.5m", "12h", "30d", "4w")
    assert [parse_duration_s(text, key="--keep") for text in texts] == [10, 90, 43_200, 2_592_000, 2_419_200]
    for text in ("", "d", "-1d", "1y", "1 d", "9" * 12 + "s"):
        with pytest.raises(ConfigError):
            parse_duration_s(text, key="--keep")
