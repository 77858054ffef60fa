"""Put latency of a synchronous pair while its slave copies the master's metadata, and while it does not.

    python tests/benchmarks/bench_metadata_copy.py --rounds 4

The master has 4,000 topics, 6,000 groups and the offsets of each. Rounds alternate: a slave that copies
nothing, and one that begins the next copy as soon as one has ended, which is the worst case: by default a
copy begins every 10 s. Meanwhile an administrator changes a topic and a group, and consumers commit offsets,
so that topics, groups and offsets differ in each copy. Puts are sent one at a time, at a steady rate; CPU
seconds are those of each node during the puts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio
from attrs import frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.rivals.machine import cpu_s
from tests.node_process import TriohaNode
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.send_message import SendMessageRequestHeader, send_request

TOPICS, GROUPS, QUEUES = 4_000, 6_000, 8
PUTS, PUTS_PER_S = 1_000, 200
CHANGE_INTERVAL_S = 0.25
FILES = {"mappedFileSizeCommitLog": 1 << 26}
NEVER_MS = 3_600_000


@frozen
class Round:
    """Figures of one round."""

    latencies_ms: tuple[float, ...]
    master_cpu_s: float
    slave_cpu_s: float
    copies: int
    """Copies of the topics that have changed something."""

    def percentile_ms(self, share: float) -> float:
        """The latency that `share` of the puts do not exceed."""
        return sorted(self.latencies_ms)[int(share * (len(self.latencies_ms) - 1))]


async def change(client: RemotingClient, number: int) -> None:
    """An administrator changes a topic and a group, a consumer commits an offset."""
    topic = {
        "topic": f"Topic{number % TOPICS:05}", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
        "order": "false", "perm": "6", "readQueueNums": str(QUEUES - number // TOPICS % 2),
        "writeQueueNums": str(QUEUES),
    }  # fmt: skip
    group = {"groupName": f"group-{number % GROUPS:05}", "retryMaxTimes": 10 + number // GROUPS % 5}
    offset = {
        "topic": topic["topic"], "consumerGroup": group["groupName"], "queueId": str(number % QUEUES),
        "commitOffset": str(number),
    }  # fmt: skip
    for asked in (
        request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=topic),
        request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()),
        request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=offset),
    ):
        answer = await client.request(asked, timeout_s=30)
        assert answer.code == 0, answer


def fill(config: Path) -> None:
    """Write the files of a store that has all topics, groups and offsets."""
    topics = {
        name: {
            "topicName": name, "readQueueNums": QUEUES, "writeQueueNums": QUEUES, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }
        for name in (f"Topic{number:05}" for number in range(TOPICS))
    }  # fmt: skip
    groups = {name: {"groupName": name} for name in (f"group-{number:05}" for number in range(GROUPS))}
    offsets = {
        f"Topic{number % TOPICS:05}@{name}": {str(queue_id): 5 for queue_id in range(QUEUES)}
        for number, name in enumerate(groups)
    }
    config.mkdir(parents=True)
    for name, table, entries in (
        ("topics.json", "topicConfigTable", topics),
        ("subscriptionGroup.json", "subscriptionGroupTable", groups),
        ("consumerOffset.json", "offsetTable", offsets),
    ):
        (config / name).write_text(json.dumps({table: entries}))


async def measure(address: str) -> tuple[float, ...]:
    """Latencies of puts, in ms, while metadata changes."""
    latencies_ms = []
    async with open_client(address) as client, open_client(address) as other, trio.open_nursery() as nursery:

        async def go_on_changing() -> None:
            number = time.time_ns() % GROUPS
            while True:
                await change(other, number)
                number += 1
                await trio.sleep(CHANGE_INTERVAL_S)

        nursery.start_soon(go_on_changing)
        header = SendMessageRequestHeader("P", "Topic00000", "TBW102", QUEUES, 0, 0, 0, 0)
        next_s = trio.current_time()
        for _ in range(PUTS):
            await trio.sleep_until(next_s)
            begin_ns = time.perf_counter_ns()
            answer = await client.request(send_request(header, b"x" * 1024), timeout_s=30)
            latencies_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
            assert answer.code == 0, answer
            next_s = max(next_s + 1 / PUTS_PER_S, trio.current_time())
        nursery.cancel_scope.cancel()
    return tuple(latencies_ms)


def play(master: TriohaNode, folder: Path, *, copies: bool) -> Round:
    """One round, with a slave that copies or not."""
    slave = TriohaNode(
        folder,
        role="SLAVE",
        ha_master_address=master.ha_address,
        **{
            **FILES,
            "trioha.masterAddress": master.listen_address,
            "trioha.metadataSyncFirst": 1 if copies else NEVER_MS,
            "trioha.metadataSyncPeriod": 1,
        },
    )
    slave.wait(max_offset=master.max_offset, within_s=60)
    master.wait(connections=1, within_s=60)

    def changes() -> int:
        metadata = slave.status().metadata
        assert metadata is not None
        return metadata.tables["topics"].changes

    while copies and not changes():
        time.sleep(0.1)
    before, copied = (cpu_s(master.pid), cpu_s(slave.pid)), changes()
    latencies_ms = trio.run(measure, master.listen_address)
    after, copied = (cpu_s(master.pid), cpu_s(slave.pid)), changes() - copied
    slave.stop()
    return Round(latencies_ms, after[0] - before[0], after[1] - before[1], copied)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each kind")
    rounds = parser.parse_args().rounds
    kinds = {"copies nothing": False, "copies all the time": True}
    found: dict[str, list[Round]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="trioha-bench-") as name:
        folder = Path(name)
        fill(folder / "master" / "config")
        master = TriohaNode(folder / "master", role="SYNC_MASTER", **FILES)
        try:
            for number in range(rounds):
                for kind, copies in kinds.items():
                    found[kind].append(play(master, folder / f"slave-{number}-{copies}", copies=copies))
        finally:
            master.stop()
    print(
        f"{TOPICS} topics, {GROUPS} groups; {PUTS} puts a round, {PUTS_PER_S}/s; medians of {rounds} rounds"
    )
    print("slave                  p50 ms   p99 ms   max ms  master CPU s  slave CPU s  changed copies")
    for kind, played in found.items():
        p50, p99, most = (
            statistics.median(one.percentile_ms(share) for one in played) for share in (0.5, 0.99, 1.0)
        )
        cpu = [
            statistics.median(one.master_cpu_s for one in played),
            statistics.median(one.slave_cpu_s for one in played),
        ]
        copied = statistics.median(one.copies for one in played)
        print(f"{kind:22} {p50:7.2f} {p99:8.2f} {most:8.2f} {cpu[0]:13.2f} {cpu[1]:12.2f} {copied:15.0f}")


if __name__ == "__main__":
    main()
