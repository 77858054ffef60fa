"""What a pull costs that waits for messages, measured in a process of its own with real sockets."""

import json
import subprocess
import sys

import pytest

PULLS = 2000
SERVER = """
import gc, json, sys, tempfile
from functools import partial
from pathlib import Path

import trio
from tests.broker.consuming import Broker
from tests.descriptors import resources_closed
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codec import encode
from trioha.remoting.command import request

def private_bytes():
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))

async def main(number):
    broker = Broker(Path(tempfile.mkdtemp(dir=sys.argv[2])))
    broker.metadata.topics.put(TopicConfig("Idle", number, number))
    server = broker.server()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.consumers.run)
        (address,) = await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
        stream = await trio.open_tcp_stream(*address)

        async def pull(queue_ids):
            for queue_id in queue_ids:
                fields = {
                    "consumerGroup": "CG_SPEC_push", "topic": "Idle", "queueId": str(queue_id),
                    "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
                    "suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "1795234072843",
                    "expressionType": "TAG", "bname": "broker-a", "maxMsgBytes": "262144",
                }
                await stream.send_all(encode(request(11, ext_fields=fields), opaque=queue_id))
            with trio.fail_after(30):
                while broker.consumers.polls.open_polls < queue_ids.stop:
                    await trio.sleep(0.02)

        # The first pulls allocate what all share; they are not counted.
        await pull(range(200))
        before = private_bytes()
        await pull(range(200, number))
        after = private_bytes()
        print(json.dumps({"bytes": (after - before) / (number - 200)}))
        nursery.cancel_scope.cancel()

with resources_closed():
    trio.run(main, int(sys.argv[1]))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="private memory is read from /proc")
def test_ten_thousand_pulls_that_wait_take_less_than_64_mib(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(PULLS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] * 10_000 < 64 * 1024 * 1024
