"""The collector over real sockets: brokers that answer, refuse, talk nonsense, or are not there."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.controller.set_data import parse_broker_names, set_data_body
from tests.doctor.cases import MASTER, SLAVE, pair
from trioha.broker_status import BrokerStatus
from trioha.controller.bodies import CachedEpoch, EpochCache, Replica, ReplicaSetInfo
from trioha.controller.protocol import ControllerMetadata
from trioha.doctor import collector
from trioha.doctor.collector import Collector, Targets
from trioha.doctor.conf_files import read_conf
from trioha.doctor.facts import BrokerFacts, ConfFacts, ControllerFacts, EpochFileFacts, Facts, IdentityFacts
from trioha.errors import ConfigError
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.ha_runtime_info import encode_ha_status
from trioha.remoting.server import Peer, RemotingServer
from trioha.store.epochs import EpochEntry, EpochTable

Answer = Callable[[RemotingCommand], RemotingCommand]
TOPICS = {
    "dataVersion": {"counter": 1, "timestamp": 5},
    "topicConfigTable": {"Orders": {"topicName": "Orders"}},
}
TABLE = {"bootTimestamp": "1000000", "runtime": "[ 0 days, 0 hours, 1 minutes, 5 seconds ]"}


def status_of(address: str) -> BrokerStatus:
    """The status of a healthy trioha node, without addresses that would be dialled."""
    both = pair()
    facts = both.master if address == MASTER else both.slave
    assert facts.status is not None
    return evolve(facts.status, ha_address=None)


class FakeBroker:
    """Answers requests as a node with that status, and notes them."""

    def __init__(self, status: BrokerStatus, asked: list[tuple[str, int]] | None = None) -> None:
        self.status = status
        self.asked = [] if asked is None else asked
        self.bodies: dict[int, bytes] = {
            RequestCode.GET_BROKER_HA_STATUS: encode_ha_status(status),
            RequestCode.GET_BROKER_CONFIG: b"brokerName=broker-a\nbrokerId=0\n",
            RequestCode.GET_BROKER_RUNTIME_INFO: json.dumps({"table": TABLE}).encode(),
            RequestCode.GET_ALL_TOPIC_CONFIG: json.dumps(TOPICS).encode(),
        }
        self.refusals: dict[int, int] = {}

    def __call__(self, asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        self.asked.append((self.status.role, asked.code))
        if asked.code in self.refusals:
            return response_to(asked, self.refusals[asked.code], remark="no account\nof that name")
        body = self.bodies.get(asked.code)
        if body is None:
            return response_to(asked, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return response_to(asked, ResponseCode.SUCCESS, body=body)


@asynccontextmanager
async def serving(*handlers: Callable[..., RemotingCommand]) -> AsyncIterator[list[Address]]:
    """Addresses of servers with these handlers."""
    async with trio.open_nursery() as nursery:
        addresses = []
        for handler in handlers:
            server = RemotingServer(handler)
            ((host, port),) = await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
            addresses.append(Address(host, port))
        yield addresses
        nursery.cancel_scope.cancel()


async def collect(*addresses: Address, **more: object) -> Facts:
    names = more.pop("name_servers", ())
    targets = Targets(addresses=addresses, name_servers=names)  # type: ignore[arg-type]
    return await Collector(targets=targets, **{"timeout_s": 30.0, **more}).collect()  # type: ignore[arg-type]


async def facts_of(broker: FakeBroker, **more: object) -> BrokerFacts:
    """What is collected of one broker."""
    async with serving(broker) as (address,):
        (facts,) = (await collect(address, **more)).brokers
    return facts


async def test_a_broker_is_asked_for_everything():
    async with serving(FakeBroker(status_of(SLAVE))) as (address,):
        facts = await collect(address)
    (broker,) = facts.brokers
    assert (broker.address, broker.is_named, broker.error, broker.gaps) == (str(address), True, None, ())
    assert broker.peer_host == "127.0.0.1"
    assert broker.status.role == "SLAVE"
    assert broker.config == {"brokerName": "broker-a", "brokerId": "0"}
    assert (broker.clock.uptime_s, broker.clock.booted_ms) == (65, 1_000_000)
    assert set(broker.tables.topics.entries) == {"Orders"}
    assert broker.tables.groups is None


async def test_masters_are_asked_again_after_all_slaves():
    asked: list[tuple[str, int]] = []
    async with serving(
        FakeBroker(status_of(MASTER), asked), FakeBroker(status_of(SLAVE), asked)
    ) as addresses:
        await collect(*addresses)
    status, topics = RequestCode.GET_BROKER_HA_STATUS, RequestCode.GET_ALL_TOPIC_CONFIG
    for code in (status, topics):
        last_of_slave = max(index for index, one in enumerate(asked) if one == ("SLAVE", code))
        last_of_master = max(index for index, one in enumerate(asked) if one == ("SYNC_MASTER", code))
        assert last_of_master > last_of_slave
    assert asked.count(("SLAVE", status)) == 1
    assert asked.count(("SYNC_MASTER", status)) == 2


async def test_a_slave_of_4_9_is_asked_once():
    # It does not report its connection to the master, and is known by its settings only.
    slave = FakeBroker(status_of(SLAVE))
    slave.refusals[RequestCode.GET_BROKER_HA_STATUS] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    slave.bodies[RequestCode.GET_BROKER_CONFIG] = b"brokerName=broker-a\nbrokerId=1\nbrokerRole=SLAVE\n"
    table = {**TABLE, "commitLogMaxOffset": "100", "commitLogMinOffset": "0", "brokerVersionDesc": "V4_9_7"}
    slave.bodies[RequestCode.GET_BROKER_RUNTIME_INFO] = json.dumps({"table": table}).encode()
    facts = await facts_of(slave)
    assert (facts.status.role, facts.status.source, facts.status.client) == ("SLAVE", "runtime-info", None)
    topics = [one for one in slave.asked if one[1] == RequestCode.GET_ALL_TOPIC_CONFIG]
    assert len(topics) == 1


async def test_a_refusal_is_a_gap_and_the_other_answers_are_kept():
    broker = FakeBroker(status_of(SLAVE))
    broker.refusals[RequestCode.GET_BROKER_CONFIG] = ResponseCode.NO_PERMISSION
    facts = await facts_of(broker)
    assert facts.gaps == ("GET_BROKER_CONFIG was answered with NO_PERMISSION (16): no account",)
    assert facts.config is None
    assert facts.clock is not None
    assert facts.tables.topics is not None


async def test_a_broker_that_refuses_its_status_is_refused_and_not_dead():
    broker = FakeBroker(status_of(SLAVE))
    broker.refusals[RequestCode.GET_BROKER_HA_STATUS] = ResponseCode.NO_PERMISSION
    facts = await facts_of(broker)
    assert facts.status is None
    assert facts.is_refused
    assert facts.error is not None
    assert "NO_PERMISSION (16): no account" in facts.error


@pytest.mark.parametrize("body", [b"{]", b"[]", b'{"topicConfigTable":{"T":5}}'])
async def test_a_table_that_makes_no_sense_is_a_gap(body):
    broker = FakeBroker(status_of(SLAVE))
    broker.bodies[RequestCode.GET_ALL_TOPIC_CONFIG] = body
    facts = await facts_of(broker)
    assert len(facts.gaps) == 1
    assert facts.status is not None
    assert facts.clock is not None
    assert facts.tables.topics is None


async def test_a_broker_that_is_not_there_is_a_fact_and_others_are_examined():
    with trio.socket.socket() as bound:
        await bound.bind(("127.0.0.1", 0))
        dead = Address("127.0.0.1", bound.getsockname()[1])
        async with serving(FakeBroker(status_of(SLAVE))) as (address,):
            facts = await collect(dead, address)
    assert facts.brokers[0].error == "cannot connect: Connection refused"
    assert not facts.brokers[0].is_refused
    assert facts.brokers[1].status is not None


async def test_a_name_server_adds_its_brokers_once_and_not_as_named():
    async with serving(FakeBroker(status_of(SLAVE)), FakeBroker(status_of(MASTER))) as (slave, master):
        body = (
            f'{{"brokerAddrTable":{{"broker-a":{{"brokerAddrs":{{0:"{master}",1:"{slave}",2:"nonsense"}},'
            '"brokerName":"broker-a","cluster":"c"}}}'
        )

        def names(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
            return response_to(asked, ResponseCode.SUCCESS, body=body.encode())

        async with serving(names) as (name_server,):
            facts = await collect(slave, name_servers=(name_server,))
    assert [(one.address, one.is_named) for one in facts.brokers] == [
        (str(slave), True),
        (str(master), False),
        ("nonsense", False),
    ]
    assert facts.brokers[2].error is not None
    (server,) = facts.name_servers
    assert [(one.broker_id, one.address) for one in server.brokers] == [
        (0, str(master)),
        (1, str(slave)),
        (2, "nonsense"),
    ]


@asynccontextmanager
async def announcing_broker(
    handler: Callable[[trio.SocketStream], Awaitable[None]],
) -> AsyncIterator[tuple[Address, Address, str]]:
    """A broker, the broker at whose address it announces itself, and its HA port, which `handler` serves."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handler, 0, host="127.0.0.1"))
        ha_address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        broker = FakeBroker(evolve(status_of(SLAVE), ha_address=ha_address))
        async with serving(broker, FakeBroker(status_of(SLAVE))) as (address, other):
            broker.bodies[RequestCode.GET_BROKER_CONFIG] = (
                f"brokerIP1=127.0.0.1\nlistenPort={other.port}\n"
            ).encode()
            yield address, other, ha_address
        nursery.cancel_scope.cancel()


async def close_at_once(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def keep_open(stream: trio.SocketStream) -> None:
    await stream.receive_some(1)


async def test_announced_addresses_are_dialled():
    async with announcing_broker(keep_open) as (address, other, ha_address):
        (facts,) = (await collect(address)).brokers
    # From the broker's own host it is not asked whether others are admitted.
    assert (facts.ha.address, facts.ha.error, facts.ha.closed_at_once) == (ha_address, None, False)
    assert (facts.ha.local_host, facts.ha.peer_host) == ("127.0.0.1", "127.0.0.1")
    assert facts.ha.is_same_host
    assert facts.advertised.address == str(other)
    assert (facts.advertised.broker_name, facts.advertised.broker_id) == ("broker-a", 0)
    assert facts.vip.address == f"127.0.0.1:{other.port - 2}"


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8 on the loopback interface")
@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_connection_that_a_node_closes_was_not_admitted(is_closed, monkeypatch):
    monkeypatch.setattr(collector, "CLOSED_WITHIN_S", 30.0 if is_closed else 0.1)
    async with announcing_broker(close_at_once if is_closed else keep_open) as (address, _, _):
        (facts,) = (await collect(address, source="127.0.0.2")).brokers
    assert (facts.ha.error, facts.ha.closed_at_once) == (None, is_closed)
    assert (facts.ha.local_host, facts.ha.peer_host) == ("127.0.0.2", "127.0.0.1")


class JustStarted(FakeBroker):
    """A broker of 4.9 that has no figures for its first answers."""

    def __init__(self, status: BrokerStatus, *, answers_without: int) -> None:
        super().__init__(status)
        self.answers_without = answers_without
        self.refusals[RequestCode.GET_BROKER_HA_STATUS] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        table = {
            **TABLE,
            "commitLogMaxOffset": "100",
            "commitLogMinOffset": "0",
            "brokerVersionDesc": "V4_9_7",
        }
        self.bodies[RequestCode.GET_BROKER_RUNTIME_INFO] = json.dumps({"table": table}).encode()

    def __call__(self, asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        if asked.code == RequestCode.GET_BROKER_RUNTIME_INFO and self.answers_without:
            self.answers_without -= 1
            remark = "java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast"
            return response_to(asked, ResponseCode.SYSTEM_ERROR, remark=remark)
        return super().__call__(asked, peer)


async def test_a_broker_that_has_just_started_is_asked_until_it_has_figures():
    facts = await facts_of(JustStarted(status_of(SLAVE), answers_without=2))
    assert facts.error is None
    assert facts.status.max_offset == 100


async def test_a_broker_that_never_has_figures_refuses():
    broker = JustStarted(status_of(SLAVE), answers_without=10**9)
    facts = await facts_of(broker, timeout_s=1.0)
    assert facts.is_refused
    assert facts.error is not None
    assert "NoSuchElementException" in facts.error


async def test_an_address_that_is_not_dialable_is_not_dialled():
    broker = FakeBroker(evolve(status_of(SLAVE), ha_address="10.0.0.1:0"))
    facts = await facts_of(broker)
    assert facts.ha is None
    assert facts.advertised is None
    assert facts.status is not None


async def test_a_file_that_cannot_be_read_is_refused():
    nowhere = Collector(targets=Targets(files=(Path("/nowhere/broker.conf"),)))
    with pytest.raises(ConfigError, match="cannot be read"):
        await nowhere.collect()


# -- controllers -------------------------------------------------------------------------------------------

EPOCHS = EpochCache("c", "broker-a", 0, 700, (CachedEpoch(3, 0, 2**63 - 1),))
GROUP = ReplicaSetInfo((Replica("broker-a", 1, MASTER, is_alive=True),), (), 1, MASTER, 3, 4)


class FakeController:
    """Answers as a controller that leads, or names the one that does."""

    def __init__(self, *, leads: bool = False, leader: str = "", group_code: int = 0) -> None:
        self.metadata = ControllerMetadata(is_leader=leads, leader_address=leader or None)
        self.group_code = group_code
        self.names: list[list[str]] = []

    def __call__(self, asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        if asked.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
            return response_to(asked, ResponseCode.SUCCESS, ext_fields=self.metadata.to_fields())
        assert asked.code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        self.names.append(parse_broker_names(asked.body))
        return response_to(asked, self.group_code, body=set_data_body({"broker-a": GROUP}))


def controlled_broker(controllers: str) -> FakeBroker:
    broker = FakeBroker(status_of(MASTER))
    lines = (
        "brokerName=broker-a",
        "brokerId=0",
        "enableControllerMode=true",
        f"controllerAddr={controllers}",
    )
    broker.bodies[RequestCode.GET_BROKER_CONFIG] = "\n".join(lines).encode()
    broker.bodies[RequestCode.GET_BROKER_EPOCH_CACHE] = EPOCHS.to_body()
    return broker


async def facts_of_controlled(controllers: str) -> Facts:
    async with serving(controlled_broker(controllers)) as (broker,):
        return await Collector(targets=Targets(addresses=(broker,)), timeout_s=5.0).collect()


async def test_controllers_and_epochs_of_a_broker_in_controller_mode_are_facts():
    leading = FakeController(leads=True)
    async with serving(leading) as (leader,):
        following = FakeController(leader=str(leader))
        async with serving(following) as (follower,):
            facts = await facts_of_controlled(f"127.0.0.1:1;{follower}; ;nonsense")
    assert facts.brokers[0].epochs == EPOCHS
    found = {one.address: one for one in facts.controllers}
    assert set(found) == {"127.0.0.1:1", str(follower), "nonsense", str(leader)}
    assert found[str(leader)] == ControllerFacts(
        address=str(leader), is_leader=True, groups={"broker-a": GROUP}
    )
    assert found[str(follower)] == ControllerFacts(address=str(follower), leader=str(leader))
    assert "refused" in (found["127.0.0.1:1"].error or "")
    assert found["nonsense"].error
    assert leading.names == [["broker-a"]]
    assert following.names == []


async def test_a_leader_that_refuses_its_groups_is_a_leader_with_a_gap():
    async with serving(FakeController(leads=True, group_code=ResponseCode.SYSTEM_ERROR)) as (leader,):
        (found,) = (await facts_of_controlled(str(leader))).controllers
    assert (found.is_leader, found.error, found.groups) == (True, None, {})
    assert found.gap is not None
    assert "SYSTEM_ERROR" in found.gap


async def test_without_controller_mode_no_controller_is_asked():
    broker = FakeBroker(status_of(MASTER))
    broker.bodies[RequestCode.GET_BROKER_CONFIG] = b"brokerName=broker-a\ncontrollerAddr=127.0.0.1:1\n"
    async with serving(broker) as (address,):
        facts = await Collector(targets=Targets(addresses=(address,)), timeout_s=5.0).collect()
    assert facts.controllers == ()
    assert facts.brokers[0].epochs is None
    assert RequestCode.GET_BROKER_EPOCH_CACHE not in [code for _, code in broker.asked]


def conf_of(folder: Path, text: str = "") -> ConfFacts:
    path = folder / "broker.conf"
    path.write_text(f"brokerName=broker-a\nenableControllerMode=true\nstorePathRootDir={folder}\n{text}")
    return read_conf(path)


def test_identity_and_epochs_of_a_store_on_this_host_are_facts(tmp_path):
    assert (conf_of(tmp_path).identity, conf_of(tmp_path).epoch_file) == (None, None)
    (tmp_path / "brokerIdentity").write_text("c#broker-a#3")
    (tmp_path / "epochs").write_bytes(EpochTable((EpochEntry(2, 0), EpochEntry(5, 90))).encode())
    (tmp_path / "commitlog").mkdir()
    for name, size in (("00000000000000000000", 64), ("00000000000000000064", 60), ("abort", 900)):
        (tmp_path / "commitlog" / name).write_bytes(bytes(size))
    facts = conf_of(tmp_path, f"storePathEpochFile={tmp_path}/epochs\n")
    assert facts.identity == IdentityFacts(
        path=str(tmp_path / "brokerIdentity"), cluster_name="c", broker_name="broker-a", broker_id=3
    )
    assert facts.epoch_file == EpochFileFacts(
        path=str(tmp_path / "epochs"), last_epoch=5, last_start_offset=90, log_end_max=124
    )
    assert read_conf(_plain(tmp_path)).identity is None


def _plain(folder: Path) -> Path:
    path = folder / "plain.conf"
    path.write_text(f"brokerName=broker-a\nstorePathRootDir={folder}\n")
    return path


@pytest.mark.parametrize("text", ["", "c#broker-a", "c#broker-a#x", "c#broker-a#0", "#", "c#b#1#2"])
def test_a_damaged_identity_is_a_fact_and_not_an_error(tmp_path, text):
    (tmp_path / "brokerIdentity").write_text(text)
    identity = conf_of(tmp_path).identity
    assert identity.error is not None


@pytest.mark.parametrize("data", [b"", b"1\n0\n", b"1\n7\n1-0\n", b"\xff\n0\n1-0\n", b"2\n0\n2-0\n1-9\n"])
def test_damaged_epochs_are_a_fact_and_not_an_error(tmp_path, data):
    (tmp_path / "epochFileCheckpoint").write_bytes(data)
    epoch_file = conf_of(tmp_path).epoch_file
    assert epoch_file.error is not None
