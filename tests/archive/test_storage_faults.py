"""An S3 server that cannot be relied on: each fault of a request is survived, or named in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from attrs import evolve
from obstore.exceptions import GenericError

from tests.ports import free_port
from tests.s3 import S3Bucket, bucket_in_environment, obstore_settled
from tests.s3_proxy import PASSING, S3Fault, s3_proxy
from trioha.archive import objects
from trioha.archive.errors import ArchiveError, FencedError, MissingObjectError
from trioha.archive.failures import archive_error
from trioha.archive.heads import create_head, read_head
from trioha.archive.layout import Head, Writer, head_key
from trioha.archive.objects import ObjectFolder

HEAD = Head(
    number=1,
    cluster_name="C",
    broker_name="a",
    writer=Writer(id="host:/store", epoch=1, since_ms=1, renewed_ms=1),
    generations=(),
)
OTHER = evolve(HEAD, writer=evolve(HEAD.writer, id="other:/store", epoch=2))
DATA = b"0123456789" * 1000
BIG = bytes(6 << 20)

Request = Callable[[ObjectFolder], object]
READS: dict[str, Request] = {
    "get": lambda folder: folder.get("log/a"),
    "stream": lambda folder: b"".join(folder.stream("log/a")),
    "get_range": lambda folder: folder.get_range("log/a", start=0, end=len(DATA)),
    "list": lambda folder: [(one.key, one.bytes) for one in folder.list("log")],
}
WRITES: dict[str, Request] = {
    "create": lambda folder: folder.create("log/b", DATA),
    "put": lambda folder: folder.put("log/b", DATA),
    "put in parts": lambda folder: folder.put("log/b", iter([BIG])),
    "delete": lambda folder: folder.delete(["log/a"]),
}
REQUESTS = READS | WRITES
FULL = """
import resource, sys
from trioha.archive.errors import ArchiveError
from trioha.archive.objects import ObjectFolder
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    ObjectFolder.open(sys.argv[1]).put("log/a", bytes(10_000))
except ArchiveError as error:
    print(error.is_transient, error)
"""
"""Stores an object in a folder, without space for it."""
CUTS = (S3Fault.CUT_BEFORE, S3Fault.CUT_IN_REQUEST, S3Fault.CUT_AFTER, S3Fault.CUT_IN_ANSWER)


QUICK = (S3Fault.CUT_AFTER, S3Fault.SLOW_DOWN)
FAULTS = [one if one in QUICK else pytest.param(one, marks=pytest.mark.full) for one in PASSING]


@pytest.fixture
def proxy(s3_server_of_this_run):
    with obstore_settled(), s3_proxy(s3_server_of_this_run.port) as proxy:
        yield proxy


@pytest.fixture
def url(proxy, s3_server_of_this_run, monkeypatch):
    """An archive's, through the proxy. Nothing waits long between two requests."""
    monkeypatch.setattr(objects, "BACKOFF_S", 0.001)
    bucket = S3Bucket(name=s3_server_of_this_run.make_bucket(), endpoint=proxy.endpoint)
    with bucket_in_environment(bucket, monkeypatch):
        yield bucket.url


@pytest.fixture
def folder(url):
    folder = ObjectFolder.open(url)
    folder.put("log/a", DATA)
    return folder


def fails(request, folder):
    with pytest.raises(ArchiveError) as caught:
        request(folder)
    error = caught.value
    assert str(error).startswith(f"{folder.url}/log")
    assert "\n" not in str(error)
    return error


@pytest.mark.parametrize("fault", FAULTS)
def test_each_request_succeeds_despite_one_fault(folder, proxy, fault):
    for name, read in READS.items():
        proxy.passages.clear()
        proxy.strike(fault, times=1)
        assert read(folder) == (DATA if name != "list" else [("log/a", len(DATA))]), name
        assert fault in [one.fault for one in proxy.passages]
    # Whatever happened to the answer, a created object is ours, and one of another writer stays.
    proxy.strike(fault, times=1, method="PUT")
    assert folder.create("log/b", b"ours")
    proxy.strike(fault, times=1, method="PUT")
    assert not folder.create("log/a", b"ours")
    proxy.heal()
    assert (folder.get("log/a"), folder.get("log/b")) == (DATA, b"ours")
    proxy.strike(fault, times=1)
    folder.put("log/a", b"new")
    proxy.heal()
    assert folder.get("log/a") == b"new"
    proxy.strike(fault, times=1)
    folder.delete(["log/a", "log/b", "log/none"])
    proxy.heal()
    assert list(folder.list("log")) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "fault",
    [
        one if one in (*QUICK, S3Fault.CUT_IN_REQUEST) else pytest.param(one, marks=pytest.mark.nightly)
        for one in PASSING
    ],
)
def test_an_object_in_parts_is_whole_or_the_same_put_succeeds_later(folder, proxy, fault):
    for step in (
        {"within": "uploads="},
        {"within": "partNumber=2"},
        {"within": "uploadId=", "method": "POST"},
    ):
        folder.put("log/a", DATA)
        proxy.strike(fault, times=1, **step)
        transient = []
        try:
            folder.put("log/a", iter([BIG]))
        except ArchiveError as error:
            transient.append(error.is_transient)
        proxy.heal()
        if transient:
            assert transient == [True]
            assert folder.get("log/a") in (DATA, BIG)
            folder.put("log/a", iter([BIG]))
        assert folder.get("log/a") == BIG, step


@pytest.mark.parametrize("fault", [CUTS[0], *(pytest.param(one, marks=pytest.mark.full) for one in CUTS[1:])])
def test_connections_that_always_end_are_a_transient_error(folder, proxy, fault):
    for request in REQUESTS.values():
        proxy.strike(fault)
        error = fails(request, folder)
        assert error.is_transient
        assert "the connection ended before the answer" in str(error)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (S3Fault.ERROR, "500 Internal Server Error: InternalError: Please try again."),
        (S3Fault.SLOW_DOWN, "503 Service Unavailable: SlowDown: Please reduce your request rate."),
    ],
)
def test_a_server_that_always_fails_is_a_transient_error(folder, proxy, fault, reason):
    proxy.strike(fault)
    for request in REQUESTS.values():
        proxy.passages.clear()
        error = fails(request, folder)
        assert (error.is_transient, error.reason) == (True, f"the server answers {reason}")
        # Repeated by obstore, and not once more by us.
        assert [one.fault for one in proxy.passages].count(fault) <= objects.RETRIES_MAX + 1


def test_wrong_credentials_are_named_and_not_tried_again(folder, proxy):
    proxy.strike(S3Fault.DENIED)
    for request in REQUESTS.values():
        proxy.passages.clear()
        error = fails(request, folder)
        assert not error.is_transient
        assert error.reason == "access is denied: 403 Forbidden: AccessDenied: Access Denied"
        assert error.hint == "check the credentials and their permissions"
        assert len([one for one in proxy.passages if one.fault]) == 1


@pytest.mark.full
@pytest.mark.parametrize("fault", [S3Fault.SILENT_BEFORE, S3Fault.SILENT_AFTER])
def test_a_request_without_an_answer_ends_at_its_time_limit(url, proxy, monkeypatch, fault):
    ObjectFolder.open(url).put("log/a", DATA)
    monkeypatch.setattr(objects, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(objects, "RETRIES_MAX", 1)
    folder = ObjectFolder.open(url)
    proxy.strike(fault)
    for request in REQUESTS.values():
        error = fails(request, folder)
        assert error.is_transient
        assert error.reason == "no answer in time"
    # A time limit of the environment counts, too.
    monkeypatch.setattr(objects, "REQUEST_TIMEOUT_S", 3600.0)
    monkeypatch.setenv("AWS_TIMEOUT", "200ms")
    assert fails(READS["get"], ObjectFolder.open(url)).reason == "no answer in time"


def test_a_server_that_does_not_listen_is_a_transient_error(url, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    folder = ObjectFolder.open(url)
    for request in REQUESTS.values():
        error = fails(request, folder)
        assert error.is_transient
        assert error.reason == "cannot connect: Connection refused"


def test_a_bucket_that_is_not_there_is_named(url):
    folder = ObjectFolder.open("s3://no-such-bucket/a")
    for name, request in REQUESTS.items():
        if name == "delete":
            continue  # moto deletes in buckets that are not there
        error = fails(request, folder)
        assert not error.is_transient
        assert not isinstance(error, MissingObjectError)
        assert error.reason == "there is no such bucket"


def test_an_endpoint_without_tls_has_to_be_allowed(url, monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    error = fails(READS["get"], ObjectFolder.open(url))
    assert not error.is_transient
    assert str(error) == f"{url}/log/a: the endpoint is an http:// URL; AWS_ALLOW_HTTP=true allows it"


def test_errors_of_other_storages_are_named_as_those_of_s3_are():
    for url, variable in (("gs://b/a", "GOOGLE"), ("az://b/a", "AZURE")):
        error = archive_error(GenericError("HTTP error: builder error: BadScheme"), url=url, key=None)
        assert error.hint == f"{variable}_ALLOW_HTTP=true allows it"
    said = '{"error":{"code":400,"message":"invalid name"}}'
    answer = GenericError(f"Server returned non-2xx status code: 400 Bad Request: {said}")
    error = archive_error(answer, url="gs://b/a", key=None)
    assert error.reason == "the server answers 400 Bad Request: invalid name"


def test_a_range_after_the_end_is_not_tried_again(folder, proxy):
    proxy.passages.clear()
    error = fails(lambda folder: folder.get_range("log/a", start=len(DATA), end=len(DATA) + 1), folder)
    assert not error.is_transient
    assert "416" in error.reason


def test_a_folder_that_takes_no_more_is_a_transient_error(tmp_path):
    said = subprocess.run(
        [sys.executable, "-c", FULL, f"file://{tmp_path}"], capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith(f"True file://{tmp_path}/log/a: ")
    assert "File too large" in said.stdout
    assert said.stdout.count("\n") == 1
    assert list(ObjectFolder.open(f"file://{tmp_path}").list("log")) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_head_whose_answer_was_lost_is_of_the_writer_that_stored_it(url, proxy, fault):
    folder = ObjectFolder.open(url)
    proxy.strike(fault, times=1, method="PUT", within=head_key(1))
    create_head(folder, HEAD)
    assert proxy.passages[0].fault is fault
    assert read_head(folder) == HEAD
    proxy.strike(fault, times=1, method="PUT", within=head_key(1))
    with pytest.raises(FencedError, match="host:/store"):
        create_head(folder, OTHER)
    assert read_head(folder) == HEAD


@pytest.mark.full
def test_heads_survive_random_faults(url, proxy):
    folder = ObjectFolder.open(url)
    proxy.strike_at_random(seed=5, share=0.3, faults=tuple(one for one in PASSING if one != S3Fault.SLOW))
    head = HEAD
    for number in range(1, 16):
        head = evolve(head, number=number)
        create_head(folder, head)
        assert read_head(folder) == head
    assert len({one.fault for one in proxy.passages}) > 4
