"""`trioha verify` as a command, of archives and of stores beside them."""

import json
from pathlib import Path

import pytest

from tests.archive.building import Put, build_from, made_log, write_store
from tests.archive.damaging import damage_object, flip
from tests.s3 import start_obstore
from trioha.cli import main

FILE_BYTES = 1000
ENTRIES = made_log([Put(queue_id=2) for _ in range(20)], file_bytes=FILE_BYTES)
END = ENTRIES[-1].end_offset


@pytest.fixture(autouse=True, scope="module")
def obstore_runs():
    """Descriptors of obstore's runtime are open before any test counts."""
    start_obstore()


@pytest.fixture
def url(tmp_path):
    url = f"file://{tmp_path}/archive"
    build_from(url, ENTRIES, file_bytes=FILE_BYTES, object_bytes=300)
    return url


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "store", ENTRIES, file_bytes=FILE_BYTES)


def damage_store(store: Path, offset: int) -> None:
    path = store / "commitlog" / f"{offset - offset % FILE_BYTES:020d}"
    data = bytearray(path.read_bytes())
    data[offset % FILE_BYTES] ^= 1
    path.write_bytes(data)


def test_an_archive_is_checked(url, capsys):
    assert main(["verify", url]) == 0
    out, err = capsys.readouterr()
    assert f"20 records and {END:,} bytes of the log" in out
    assert err == ""
    key = damage_object(url, 1, flip(40))
    assert main(["verify", url]) == 1
    assert capsys.readouterr().err.startswith(f"{url}/{key}: has CRC")
    assert main(["verify", url, "--quick"]) == 0
    assert main(["verify", url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["ok"] is False
    assert found["problemCount"] == 1
    assert found["problems"][0].startswith(key)


def test_a_store_is_compared_with_an_archive(store, url, capsys):
    assert main(["verify", str(store), "--against", url]) == 0
    assert f"equal from offset 0 to {END}: 20 records" in capsys.readouterr().out
    damage_store(store, ENTRIES[7].offset + 60)
    assert main(["verify", str(store)]) == 0, "no checksum of RocketMQ covers the storeTimestamp"
    capsys.readouterr()
    assert main(["verify", str(store), "--against", url]) == 1
    assert capsys.readouterr().err == (
        f"{store} differs at offset {ENTRIES[7].offset + 60}: the record of topic Orders, queue 2,"
        f" queue offset 7, at offset {ENTRIES[7].offset} has 1 other bytes in storeTimestamp\n"
    )
    assert main(["verify", str(store), "--against", url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["compared"] == [0, END]
    assert found["differences"] == [
        {
            "offset": ENTRIES[7].offset + 60,
            "recordOffset": ENTRIES[7].offset,
            "bytes": 1,
            "field": "storeTimestamp",
            "topic": "Orders",
            "queueId": 2,
            "queueOffset": 7,
        }
    ]


def test_a_store_that_ends_early_needs_prefix(tmp_path, url, capsys):
    store = write_store(tmp_path / "short", ENTRIES[:12], file_bytes=FILE_BYTES)
    end = ENTRIES[11].end_offset
    assert main(["verify", str(store), "--against", url]) == 1
    out, err = capsys.readouterr()
    assert err == f"{store} ends at offset {end}, the archive at {END} (--prefix accepts that)\n"
    assert f"only in the archive: offsets {end} to {END}" in out
    assert main(["verify", str(store), "--against", url, "--prefix"]) == 0


def test_an_archive_that_ends_before_its_store_is_accepted(store, tmp_path, capsys):
    url = f"file://{tmp_path}/behind"
    build_from(url, ENTRIES[:12], file_bytes=FILE_BYTES)
    assert main(["verify", str(store), "--against", url]) == 0
    records = sum(not one.is_blank for one in ENTRIES[12:])
    assert (
        f"only in the store: offsets {ENTRIES[11].end_offset} to {END}, {records} records checked"
        in capsys.readouterr().out
    )


def test_only_the_first_differences_are_printed(tmp_path, capsys):
    entries = made_log([Put() for _ in range(30)], file_bytes=100_000)
    url = f"file://{tmp_path}/archive"
    build_from(url, entries, file_bytes=100_000)
    others = made_log([Put(topic="Others") for _ in range(30)], file_bytes=100_000)
    store = write_store(tmp_path / "store", others, file_bytes=100_000)
    assert main(["verify", str(store), "--against", url]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "10 more"


def test_arguments_that_cannot_be_used_are_refused(store, url, refusal):
    for arguments, problem in (
        ([url, "--against", "x"], "--against: compares a store with an archive"),
        ([str(store), "--quick"], "--quick: is for archives"),
        ([str(store), "--against", "s4://x"], "not a URL of an object storage"),
        (["file:///nowhere/x"], "there is no such folder"),
    ):
        assert problem in refusal("verify", *arguments)
