"""What an idle connection costs a master, measured in a process of its own with real sockets."""

import json
import subprocess
import sys

import pytest

CONNECTIONS = 80
"""Few enough for the 256 descriptors that macOS allows: both ends are in one process."""
PEER = """
import gc, json, socket, sys, tempfile
from pathlib import Path

import trio
from tests.descriptors import resources_closed
from tests.ha.support import make_master
from tests.store.support import message, open_log
from trioha.ha.admission import AdmissionSettings
from trioha.node.logs import configure_logs

def private_bytes():
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))

async def main(number):
    configure_logs(as_json=False)
    log, _ = open_log(Path(tempfile.mkdtemp(dir=sys.argv[2])))
    log.append(message())
    caps = AdmissionSettings(connections_max=9999, connections_per_peer_max=9999)
    master, _, _ = make_master(log, admission=caps)
    report = log.max_offset.to_bytes(8, "big")
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(master.serve, listeners)
        address = listeners[0].socket.getsockname()
        # The connecting ends are in this process too: plain sockets, whose memory is the kernel's.
        peers = []

        def dial():
            peer = socket.create_connection(address)
            peer.sendall(report)
            peers.append(peer)

        # The first connections allocate what all share; they are not counted.
        for _ in range(20):
            await trio.to_thread.run_sync(dial)
        await trio.sleep(0.2)
        before = private_bytes()
        for _ in range(number):
            await trio.to_thread.run_sync(dial)
        with trio.fail_after(30):
            while sum(one.state == "TRANSFER" for one in master.connections()) < number + 20:
                await trio.sleep(0.02)
        after = private_bytes()
        print(json.dumps({"bytes": (after - before) / number}))
        nursery.cancel_scope.cancel()

with resources_closed():
    trio.run(main, int(sys.argv[1]))
"""


@pytest.mark.full
def test_an_idle_connection_costs_kilobytes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PEER, str(CONNECTIONS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    figure = json.loads(done.stdout)["bytes"]
    print(f"{figure / 1024:.1f} KiB of private memory for each idle connection")
    # RocketMQ needs 2.4 MB: two threads and their buffers.
    assert 1024 < figure < 64 * 1024
