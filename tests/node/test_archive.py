"""Nodes that archive: real processes, and an archive in a folder."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.node.client import Client
from tests.node_process import FILE_BYTES, TriohaNode, run_trioha
from tests.s3 import obstore_settled, start_obstore
from tests.waiting import wait_until
from trioha.archive.archiver import Archiver
from trioha.archive.log_bytes import read_log_object
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.broker_status import ArchiveStatus

pytestmark = pytest.mark.process

WITHIN_S = 75


@pytest.fixture
def start(start_node):
    return partial(start_node, role="ASYNC_MASTER", **{"trioha.archiveInterval": 100})


@pytest.fixture(autouse=True, scope="module")
def obstore_runs():
    """Descriptors of obstore's runtime are open before any test counts."""
    start_obstore()


@pytest.fixture(autouse=True)
def obstore_ends():
    """Descriptors of its requests are closed before a test's end counts."""
    with obstore_settled():
        yield


@pytest.fixture
def url(tmp_path):
    return (tmp_path / "archive").as_uri()


def archive_of(node: TriohaNode) -> ArchiveStatus:
    archive = node.status().archive
    assert archive is not None
    return archive


def wait_for_state(node: TriohaNode, state: str) -> ArchiveStatus:
    wait_until(lambda: archive_of(node).state == state)
    return archive_of(node)


def wait_archived(node: TriohaNode) -> int:
    """The end of the log, when all of it is archived."""
    end = node.max_offset
    wait_until(lambda: (archive_of(node).archived_offset or 0) >= end)
    return end


def send(node: TriohaNode, count: int, **options: Any) -> None:
    with Client(node.listen_address) as client:
        assert client.send(count, **options) == {"PUT_OK": count}


def log_of(node: TriohaNode, end: int) -> bytes:
    """The bytes of its log files, which begin at 0."""
    files = sorted((node.root / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


def archived(url: str) -> tuple[int, bytes]:
    """First offset and all bytes of the newest generation, each object checked."""
    reader = ArchiveReader.open(url)
    found = reader.generation()
    data = b"".join(piece for one in reader.objects(found) for piece in read_log_object(reader.folder, one))
    return found.first_offset, data


def archivers_of(url: str) -> list[str]:
    """Processes of archivers that work on `url`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if b"trioha.node.archive_child" in words and url.encode() in words:
            found.append(process.name)
    return found


def test_the_archive_of_a_node_that_is_killed_under_load_goes_on_and_equals_its_log(start, url, tmp_path):
    recorded = {"trioha.archiveUrl": url, "trioha.recordDir": tmp_path / "sessions"}
    node = start(**recorded)
    with ThreadPoolExecutor(1) as threads, Client(node.listen_address) as client:
        sending = threads.submit(client.send, 1_000_000, body=bytes(3000))
        wait_until(lambda: (archive_of(node).archived_offset or 0) > FILE_BYTES or sending.done())
        assert len(archivers_of(url)) == 1
        node.kill()
        assert sending.result(timeout=WITHIN_S)["closed"] == 1
    # It does not outlive its node.
    wait_until(lambda: archivers_of(url) == [])
    node = start(**recorded)
    wait_archived(node)
    send(node, 20)
    end = wait_archived(node)
    status = wait_for_state(node, "running")
    assert (status.url, status.error, status.failures, status.files_deleted_unarchived) == (url, "", 0, 0)
    assert (status.lag_bytes, status.lag_ms) == (0, 0)
    assert status.objects > 0
    # The recording of the node that was killed is complete.
    killed = min(path.name for path in (tmp_path / "sessions").iterdir())
    wait_until(
        lambda: [one.session for one in ArchiveReader.open(url).head.recordings if one.closed] == [killed]
    )
    node.stop()
    assert archivers_of(url) == []
    assert archived(url) == (0, log_of(node, end))
    assert status.generation.startswith("0001-")


@pytest.mark.full
def test_a_node_archives_to_an_s3_server_and_goes_on_there_after_a_kill(start, s3_bucket, tmp_path):
    settings = {"trioha.archiveUrl": s3_bucket.url, "trioha.recordDir": tmp_path / "sessions"}
    node = start(**settings)
    send(node, 200, body=bytes(3000))
    assert wait_archived(node) > FILE_BYTES
    objects = archive_of(node).objects
    assert objects > 0
    node.kill()
    wait_until(lambda: archivers_of(s3_bucket.url) == [])
    node = start(**settings, **{"trioha.archiveKeep": "30d"})
    # What is there is found again, not sent again.
    before = wait_archived(node)
    status = wait_for_state(node, "running")
    assert (status.url, status.error, status.failures) == (s3_bucket.url, "", 0)
    assert status.generation.startswith("0001-")
    assert status.objects < objects
    send(node, 20)
    end = wait_archived(node)
    assert end > before
    wait_until(lambda: len(ArchiveReader.open(s3_bucket.url).head.recordings) == 1)
    node.stop()
    assert archived(s3_bucket.url) == (0, log_of(node, end))


@pytest.mark.full
def test_a_slave_archives_its_log_to_a_url_of_its_own(start, tmp_path):
    urls = [(tmp_path / f"archive-{name}").as_uri() for name in ("master", "slave")]
    master = start("master", **{"trioha.archiveUrl": urls[0]})
    slave = start(
        "slave",
        slave_of=master,
        # Not in the store.
        storePathCommitLog=tmp_path / "other-disk",
        **{"trioha.archiveUrl": urls[1]},
    )
    master.wait(connections=1, within_s=WITHIN_S)
    send(master, 50)
    end = master.max_offset
    slave.wait(max_offset=end, within_s=WITHIN_S)
    assert [wait_archived(node) for node in (master, slave)] == [end, end]
    assert archived(urls[0]) == archived(urls[1]) == (0, log_of(master, end))


@pytest.mark.full
def test_an_archive_is_tried_again_until_it_can_be_written_and_left_to_a_writer_that_takes_it(
    start, tmp_path
):
    obstacle = tmp_path / "not-a-folder"
    obstacle.write_text("")
    url = f"{obstacle.as_uri()}/archive"
    node = start(**{"trioha.archiveUrl": url})
    send(node, 20)
    status = wait_for_state(node, "waiting")
    assert "Not a directory" in status.error
    assert status.archived_offset is None
    obstacle.unlink()
    end = wait_archived(node)
    assert archive_of(node).error == ""
    assert archived(url) == (0, log_of(node, end))
    # Of the same store, so that it need not wait whether the node is alive.
    Archiver(ObjectFolder.open(url), node.root).begin()
    send(node, 20)
    status = wait_for_state(node, "fenced")
    assert "another writer archives here" in status.error
    wait_until(lambda: archivers_of(url) == [])
    send(node, 20)
    shown = run_trioha("status", "--wide", node.listen_address)
    assert f"{node.listen_address}: archive fenced: {status.error}" in shown.stdout
    node.stop()


@pytest.mark.full
def test_a_damaged_record_ends_the_archive_where_it_is_and_not_the_node(start, url):
    node = start()
    send(node, 400, body=bytes(1000))
    end = node.max_offset
    assert end > 5 * FILE_BYTES
    node.stop()
    # In a file that the start of a node does not check, in the middle of a body.
    path = node.root / "commitlog" / f"{FILE_BYTES:020d}"
    at = path.read_bytes().index(bytes(1000), 10_000) + 500
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    damaged = FILE_BYTES + at
    node = start(**{"trioha.archiveUrl": url})
    status = wait_for_state(node, "damaged")
    assert status.archived_offset is not None
    assert f"no valid record at offset {status.archived_offset}" in status.error
    assert FILE_BYTES <= status.archived_offset <= damaged < end
    assert archived(url) == (0, log_of(node, status.archived_offset))
    send(node, 20)
    node.stop()
