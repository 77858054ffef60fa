"""A node short of descriptors, threads or memory serves its connections, or ends with one clear line.

No acknowledged message is lost.
"""

import resource
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.node import shims
from tests.node.client import Client, endpoint, strangers
from tests.node_process import TriohaNode, run_node, verify
from trioha.net.descriptors import raise_descriptor_limit
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, prlimit and all of 127.0.0.0/8"),
]

TRIOHA = [sys.executable, "-m", "trioha"]


@pytest.fixture(autouse=True)
def _limit_raised():
    """Raises this process's own limit for the sockets of the strangers."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def limited(descriptors: int) -> list[str]:
    """`trioha` in a process with that hard limit of open files."""
    return ["bash", "-c", f'ulimit -n {descriptors} && exec "$@"', "bash", *TRIOHA]


# -- descriptors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        64,
        pytest.param(1024, marks=pytest.mark.full),
        *(pytest.param(limit, marks=pytest.mark.nightly) for limit in (128, 300)),
    ],
)
def test_idle_connections_leave_descriptors_for_store_slaves_and_clients(start_node, tmp_path, limit):
    master = start_node("master", role="SYNC_MASTER", flushDiskType="SYNC_FLUSH", program=limited(limit))
    slave = start_node("slave", slave_of=master, program=limited(limit))
    master.wait(connections=1)
    with Client(master.listen_address) as client:
        assert client.send(50) == {"PUT_OK": 50}
        # Half of them more than there are places, in this process, too.
        with strangers(master.listen_address, min(limit + 50, 700)), strangers(master.ha_address, 30):
            assert client.send(300) == {"PUT_OK": 300}
            # A slave that comes back is served, whatever the strangers at the other port do.
            slave.kill()
            assert client.send().keys() <= {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
            slave = start_node("slave", slave_of=master, program=limited(limit))
            client.send_until_ok()
    # With the strangers gone, everyone is served again.
    assert master.load(20).statuses == {"PUT_OK": 20}
    log = master.log()
    assert "fsync failed" not in log
    assert "Too many open files" not in log
    assert "Traceback" not in log
    slave.wait(max_offset=master.max_offset)
    slave.stop()
    master.stop()
    assert verify(tmp_path / "slave", "--against", tmp_path / "master")["ok"]


def test_without_free_descriptors_new_connections_wait_and_open_ones_are_served(start_node, tmp_path):
    node = start_node("store", role="ASYNC_MASTER", flushDiskType="SYNC_FLUSH", syncFlushTimeout=10_000)
    with Client(node.listen_address) as client, ExitStack() as later:
        assert client.send(20) == {"PUT_OK": 20}
        # Something that no budget has foreseen: from now on not one more can be opened.
        limits = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        in_use = 1 + max(int(entry.name) for entry in Path(f"/proc/{node.pid}/fd").iterdir())
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (in_use, limits[1]))
        waiting = [later.enter_context(Client(node.listen_address)) for _ in range(10)]
        for one in waiting:
            one.ask()
        assert client.send(20) == {"PUT_OK": 20}
        node.wait_logged("new connections wait")
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, limits)
        assert [one.answer() for one in waiting] == ["PUT_OK"] * 10
    assert node.log().count("new connections wait") == 1
    assert "Traceback" not in node.log()
    node.stop()
    assert verify(tmp_path / "store")["ok"]


@pytest.mark.full
def test_a_store_of_many_files_leaves_descriptors_for_clients(start_node, tmp_path):
    node = start_node("store", role="ASYNC_MASTER", mappedFileSizeCommitLog=65536, maxMessageSize=60000)
    assert node.load(250, size=(50_000, 50_000)).statuses == {"PUT_OK": 250}
    node.stop()
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 200
    # Twice as many files as descriptors; and it grows by another hundred.
    node = start_node(
        "store",
        role="ASYNC_MASTER",
        mappedFileSizeCommitLog=65536,
        maxMessageSize=60000,
        program=limited(100),
    )
    with Client(node.listen_address) as client, strangers(node.listen_address, 120):
        for _ in range(100):
            # Refused while the files before are not on disk yet: they keep their descriptors until then.
            client.send_until_ok(body=bytes(50_000))
    assert "Too many open files" not in node.log()
    node.stop()
    assert verify(tmp_path / "store")["ok"]


def test_a_limit_that_is_too_low_is_one_clear_line(tmp_path):
    refused = run_node(tmp_path / "store", role="ASYNC_MASTER", program=limited(30))
    assert (refused.exit_code, refused.stdout) == (2, "")
    (line,) = refused.stderr.splitlines()
    assert line.startswith(
        "trioha: settings: this process may open 30 files, a node with these settings needs"
    )


# -- threads, memory, clock --------------------------------------------------------------------------------


def test_a_node_without_threads_answers_with_errors_and_recovers_when_it_gets_some(start_node, tmp_path):
    fault = tmp_path / "fault"
    node = start_node(
        "store",
        role="ASYNC_MASTER",
        flushDiskType="SYNC_FLUSH",
        syncFlushTimeout=300,
        cleanResourceInterval=100,
        program=shims.program(fault),
        **{"trioha.recordDir": tmp_path / "sessions"},
    )
    with Client(node.listen_address) as client:
        assert client.send(10) == {"PUT_OK": 10}
        fault.write_text(shims.THREADS)
        # Until the threads that it has are gone.
        time.sleep(10 * shims.IDLE_THREAD_S)
        assert client.send(2) == {"FLUSH_DISK_TIMEOUT": 2}
        fault.unlink()
        client.send_until_ok()
        assert client.send(10) == {"PUT_OK": 10}
    assert "no thread for disk work" in node.log()
    assert "Traceback" not in node.log()
    node.stop()
    assert verify(tmp_path / "store")["ok"]


@pytest.mark.full
def test_a_node_without_memory_serves_its_connections_or_ends_with_one_line_and_loses_nothing(
    start_node, tmp_path
):
    node = start_node("store", role="ASYNC_MASTER", flushDiskType="SYNC_FLUSH")
    stored = 0
    with Client(node.listen_address) as client, ExitStack() as opened:
        stored += client.send(50)["PUT_OK"]
        bytes_now = int(Path(f"/proc/{node.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(node.pid, resource.RLIMIT_AS, (bytes_now + (24 << 20),) * 2)
        for number in range(40):
            # Refused, cut off, or not read from any more.
            with suppress(OSError):
                stranger = socket.create_connection(
                    endpoint(node.listen_address),
                    timeout=0.2,
                    source_address=(f"127.0.0.{2 + number % 4}", 0),
                )
                opened.enter_context(stranger)
                # Most of a frame of 8 MiB.
                stranger.sendall((8 << 20).to_bytes(4) + bytes(7 << 20))
        statuses = client.send(50)
    assert statuses.keys() <= {"PUT_OK", "closed"}
    stored += statuses["PUT_OK"]
    if "closed" in statuses:
        assert node.wait_ended(within_s=60) == 1, node.log()
        last_line = node.log().splitlines()[-1]
        assert last_line.startswith("trioha: the system has no more memory"), node.log()
        # What was acknowledged is there.
        node = start_node("store", role="ASYNC_MASTER")
    else:
        assert stored == 100
    assert "Traceback" not in node.log()
    node.stop()
    found = verify(tmp_path / "store")
    assert found["ok"], found["problems"]
    assert found["stores"][0]["records"] >= stored


@pytest.mark.full
@pytest.mark.parametrize("jump_s", [10 * 365 * 86400, -10 * 365 * 86400])
def test_a_clock_that_jumps_ends_no_connection_and_deletes_nothing(start_node, tmp_path, jump_s):
    fault = tmp_path / "fault"
    settings = {
        "mappedFileSizeCommitLog": 65536,
        "maxMessageSize": 60000,
        "cleanResourceInterval": 50,
        "fileReservedTime": 1,
        "deleteWhen": ";".join(map(str, range(24))),
        "haHousekeepingInterval": 1000,
        "haSendHeartbeatInterval": 100,
    }
    master = start_node("master", role="SYNC_MASTER", program=shims.program(fault), **settings)
    slave = start_node(
        "slave",
        slave_of=master,
        program=shims.program(fault),
        **settings,
    )
    master.wait(connections=1)
    with Client(master.listen_address) as client:
        assert client.send(10, body=bytes(50_000)) == {"PUT_OK": 10}
        fault.write_text(str(jump_s))
        # Longer than the housekeeping of both sides.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            assert client.send(5, body=bytes(50_000)) == {"PUT_OK": 5}
        fault.unlink()
        assert client.send(10, body=bytes(50_000)) == {"PUT_OK": 10}
    status = master.status()
    assert (status.min_offset, len(status.connections)) == (0, 1)
    assert "slave disconnected" not in master.log()
    slave.wait(max_offset=master.max_offset)
    slave.stop()
    master.stop()
    assert verify(tmp_path / "slave", "--against", tmp_path / "master")["ok"]


def private_bytes(node: TriohaNode) -> int:
    """Private memory of the process, without mapped files."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


TAKEN_BYTES_MIN = 32 << 20


@pytest.mark.full
def test_clients_use_no_more_memory_than_their_limit(start_node):
    node = start_node("store", role="ASYNC_MASTER", mappedFileSizeCommitLog=64 << 20, maxMessageSize=4 << 20)
    before = private_bytes(node)
    largest = 0
    # The node answers it with MESSAGE_ILLEGAL, if it ever gets its end.
    frame = memoryview(encode(request(RequestCode.SEND_MESSAGE_V2, body=bytes(15 << 20)), opaque=1))
    # Five times the memory of all clients.
    with Client(node.listen_address) as client, strangers(node.listen_address, 42) as opened:
        sent = dict.fromkeys(opened, 0)
        for stranger in opened:
            stranger.setblocking(False)
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < 2.5 or (
            largest - before <= TAKEN_BYTES_MIN and passed_s < 60
        ):
            for stranger, at in sent.items():
                # Not ready for more, or closed.
                with suppress(OSError):
                    sent[stranger] += stranger.send(frame[at : min(at + (1 << 20), len(frame) - 1)])
            largest = max(largest, private_bytes(node))
            assert client.send(body=bytes(100_000)) == {"PUT_OK": 1}
    assert largest < 512 << 20
    # It has been tried: what was offered was taken as far as it was allowed.
    assert largest - before > TAKEN_BYTES_MIN
    assert "Traceback" not in node.log()
    node.stop()
