"""A real S3 server over HTTP: moto's, as a child process on a free port of 127.0.0.1.

`python -m tests.s3` is that process: it prints its port, and ends when its stdin is closed, at the latest
with the process that started it. `s3_server` starts it. The fixture `s3_bucket` gives each test a bucket
of one server for all tests of the process, with credentials and endpoint in the environment, for obstore and
for child processes alike.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from typing import Any

import obstore
import pytest
from attrs import field, frozen
from obstore.store import MemoryStore

from tests.descriptors import open_descriptors

ROOT = Path(__file__).parents[1]
REGION = "us-east-1"
END_WITHIN_S = 60.0
REQUEST_TIMEOUT_S = 60.0
SETTLED_WITHIN_S = 10.0


@frozen(kw_only=True)
class S3Server:
    """A server that runs."""

    port: int
    process_id: int
    _numbers: Iterator[int] = field(factory=lambda: count(1), repr=False)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"bucket-{next(self._numbers)}"
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT_S)
        try:
            connection.request("PUT", f"/{name}")
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, said
        finally:
            connection.close()
        return name

    def bucket(self) -> S3Bucket:
        """A new, empty bucket."""
        return S3Bucket(name=self.make_bucket(), endpoint=self.endpoint)


@frozen(kw_only=True)
class S3Bucket:
    """A bucket, and how it is reached."""

    name: str
    endpoint: str
    """Of the server, or of a proxy before it."""

    @property
    def url(self) -> str:
        """Of an archive in this bucket: `s3://`, with a prefix."""
        return f"s3://{self.name}/archives/a"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which obstore, Spark's executors and rclone find the server."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            # A proxy of the machine's is not asked for what is on the machine.
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server for as long as the block runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.s3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdout as stdout:
            line = stdout.readline()
        assert line, f"the S3 server ended with {process.wait(END_WITHIN_S)} before it listened"
        yield S3Server(port=int(line), process_id=process.pid)
    finally:
        process.stdin.close()
        try:
            process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextmanager
def bucket_in_environment(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Bucket]:
    """The environment leads to `bucket` inside the block."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    yield bucket


def start_obstore() -> None:
    """Open the descriptors that obstore's runtime keeps from the first request on, before any test counts."""
    obstore.put(MemoryStore(), "a", b"")


@contextmanager
def obstore_settled() -> Iterator[None]:
    """Waits after the block until obstore has closed what it opened in it: threads of its own do that.

    It keeps connections to a server that would go on with them: the block has to end that server.
    """
    before = open_descriptors()
    yield
    deadline_s = time.monotonic() + SETTLED_WITHIN_S
    while open_descriptors().items() - before.items() and time.monotonic() < deadline_s:
        time.sleep(0.01)


Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def conditional_puts_in_turn(application: Application) -> Application:
    """moto looks for a key and stores it in two steps: one request with If-None-Match goes after another."""
    lock = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" not in environ or environ["REQUEST_METHOD"] not in {"PUT", "POST"}:
            return application(environ, start_response)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        with lock:
            return application(environ, start_response)

    return answer


def main() -> None:
    """The server: until its stdin is closed."""
    import logging

    # Objects in memory, however large, unless a benchmark wants files: those need descriptors.
    os.environ.setdefault("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", str(1 << 30))
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    logging.disable()
    application = conditional_puts_in_turn(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    with suppress(KeyboardInterrupt):
        sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
