"""The commands of docs/operations.md, as they stand there, between a real broker and real clients.

The page's first block names what an installation has. The test replaces its values and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.interop.asking import committed, max_offsets
from tests.interop.java import PATIENT, JavaDriver
from tests.interop.messages import bodies, expected
from tests.interop.name_server import name_server
from tests.interop.programs import rocketmq_program
from tests.node_process import broker_status, verify
from tests.page_shell import BLOCK, shell, trioha_program, with_values
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.config.broker import local_address

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
SECTION = re.compile(r"^## Beside a RocketMQ broker\n(.*?)^## ", re.DOTALL | re.MULTILINE)
STEP = re.compile(r"^### (.*?)\n(.*?)(?=^### |\Z)", re.DOTALL | re.MULTILINE)
SAMPLE = re.compile(r"^```\n(OK: .*?)^```", re.DOTALL | re.MULTILINE)
TOPIC = "Orders"
GROUP = "billing"


def page() -> tuple[str, str, dict[str, list[str]]]:
    """The block of names, what `trioha status` prints, and the blocks of each step."""
    section = SECTION.search(PAGE.read_text())
    assert section is not None
    names, *rest = BLOCK.findall(section[1])
    steps = {step: BLOCK.findall(text) for step, text in STEP.findall(section[1])}
    assert rest == [block for blocks in steps.values() for block in blocks]
    (sample,) = SAMPLE.findall(section[1])
    return names, sample, steps


def with_addresses(text: str, addresses: Mapping[str, str]) -> list[list[str]]:
    """The words of each line, with other addresses, and without the length of the log."""
    for old, new in addresses.items():
        text = text.replace(old, new)
    return [line.split() for line in re.sub(r"end [\d,]+", "end", text).splitlines()]


class Clients:
    """A Java producer and the consumers of one group, and all that they have sent."""

    def __init__(self, java: JavaDriver, names: str) -> None:
        self._java, self._names = java, names
        self.sent: Counter[str] = Counter()

    def send(self, prefix: str) -> Counter[str]:
        """Send twenty messages, all of which are SEND_OK."""
        assert self._java.produce(self._names, 20, topic=TOPIC, prefix=prefix) == {"SEND_OK": 20}
        self.sent += expected(20, prefix)
        return expected(20, prefix)

    def receive(self, group: str, wanted: Counter[str]) -> None:
        """The group receives these messages, each once and no others, and commits its offsets."""
        consumer = self._java.consume(self._names, group=group, topic=TOPIC)
        consumer.received(wanted.total())
        assert bodies(consumer.end()) == wanted

    def assert_kept(self, broker: str) -> None:
        """The broker has each message that was sent, and the group has consumed all but twenty of them."""
        assert sum(max_offsets(broker, TOPIC).values()) == self.sent.total()
        assert sum(committed(broker, GROUP, TOPIC).values()) == self.sent.total() - 20


def test_the_page_puts_a_replica_beside_a_broker_and_back(newest: JavaDriver, tmp_path: Path) -> None:
    block, sample, steps = page()
    host = local_address()
    if host.startswith("127."):
        pytest.skip("brokers announce an address that others reach, and this machine has none")
    ports = {"broker": free_port(), "replica": free_port()}
    rocketmq, programs, logs = tmp_path / "rocketmq", tmp_path / "bin", tmp_path / "logs"
    logs.mkdir()
    rocketmq_program(rocketmq, "mqbroker", newest.version)
    trioha_program(programs)
    conf, stores = rocketmq / "conf" / "broker.conf", [tmp_path / "broker-store", tmp_path / "replica-store"]
    with name_server(newest.version, folder=tmp_path / "names") as names, shell(tmp_path, programs) as run:
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "brokerRole": "ASYNC_MASTER",
            "deleteWhen": "04",
            "fileReservedTime": 48,
            "flushDiskType": "ASYNC_FLUSH",
            "namesrvAddr": names,
            "brokerIP1": host,
            "listenPort": ports["broker"],
            "haListenPort": ports["broker"] + 1,
            "storePathRootDir": stores[0],
            "mappedFileSizeCommitLog": 16 << 20,
            "diskMaxUsedSpaceRatio": 99,
            **PATIENT,
        }
        conf.write_text("".join(f"{key} = {value!s}\n" for key, value in settings.items()))
        broker, replica = (f"{host}:{port}" for port in ports.values())
        run.name(
            with_values(
                block,
                {
                    "NAMESRV_ADDR": names,
                    "ROCKETMQ_HOME": rocketmq,
                    "BROKER_CONF": conf,
                    "BROKER": broker,
                    "BROKER_HA": f"{host}:{ports['broker'] + 1}",
                    "REPLICA_CONF": tmp_path / "replica.conf",
                    "REPLICA_STORE": stores[1],
                    "REPLICA_IP": host,
                    "REPLICA_PORT": ports["replica"],
                    "REPLICA_HA_PORT": ports["replica"] + 1,
                    "LOGS": logs,
                },
            )
        )
        # The broker that runs before the page begins, with messages of which a group has consumed a part.
        run.run(
            'nohup sh "$ROCKETMQ_HOME/bin/mqbroker" -c "$BROKER_CONF" >> "$LOGS/broker.log" 2>&1 &\n'
            'until trioha doctor --severity warning --namesrv "$NAMESRV_ADDR" "$BROKER"; do sleep 1; done'
        )
        clients = Clients(newest, names)
        clients.receive(GROUP, clients.send("first"))
        unread = clients.send("unread")

        for start in steps.pop("Start the replica"):
            run.run(start)
        # What comes while it runs is there, too.
        unread += clients.send("while-it-runs")
        status, monitor = steps.pop("Watch it")
        shown = with_addresses(sample, {"10.0.0.5:10911": broker, "10.0.0.6:10911": replica})
        wait_until(lambda: broker_status(broker).max_offset == broker_status(replica).max_offset, "no lag")
        assert with_addresses(run.run(status), {}) == shown
        run.run_on_terminal(monitor, (b"broker-a", b"q"))

        clients.receive(GROUP, unread)
        unread = clients.send("before-take-over")
        for take_over in steps.pop("Let it take over"):
            run.run(take_over)
        clients.assert_kept(replica)
        unread += clients.send("after-take-over")
        clients.receive(GROUP, unread)

        unread = clients.send("before-return")
        for go_back in steps.pop("Go back"):
            run.run(go_back)
        clients.assert_kept(broker)
        unread += clients.send("after-return")
        clients.receive(GROUP, unread)
        clients.receive("audit", clients.sent)
        wait_until(lambda: max_offsets(replica, TOPIC) == max_offsets(broker, TOPIC), "the replica follows")
        assert verify(stores[0], "--against", stores[1], "--prefix")["ok"]
    assert [step for step, blocks in steps.items() if blocks] == []
