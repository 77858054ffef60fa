"""The S3 server of the tests: started once, ended with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.s3 import ROOT, S3Bucket, s3_server
from trioha.archive.objects import ObjectFolder

CLIENT = """
import sys
from trioha.archive.objects import ObjectFolder
print(ObjectFolder.open(sys.argv[1]).get("log/a").decode())
"""


def test_child_processes_reach_the_bucket(s3_bucket: S3Bucket) -> None:
    ObjectFolder.open(s3_bucket.url).put("log/a", b"of the parent")
    said = subprocess.run(
        [sys.executable, "-c", CLIENT, s3_bucket.url], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert said.stdout == "of the parent\n"


def test_each_test_has_a_bucket_of_its_own(s3_bucket: S3Bucket) -> None:
    assert list(ObjectFolder.open(s3_bucket.url).list("")) == []


def test_the_server_ends_with_its_block() -> None:
    with s3_server() as server:
        process_id = server.process_id
        os.kill(process_id, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


def test_the_server_ends_when_its_starter_is_killed() -> None:
    command = (
        "from tests.s3 import s3_server\n"
        "with s3_server() as server:\n"
        "    print(server.port, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as starter:
        assert starter.stdout is not None
        assert starter.stderr is not None
        assert starter.stdout.readline()
        starter.kill()
        # The server has the other end of this pipe, too, as long as it runs.
        assert starter.stderr.read() == b""
