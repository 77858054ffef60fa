"""The demo's producer and consumer, its ledger, and the jars of RocketMQ's client."""

import os

import pytest
import trio

from tests.client.fakes import NAME_SERVER, FakeNameServer, fake_cluster, opened, route_body
from tests.interop.rocketmq import missing_tools
from tests.ports import free_port
from tests.waiting import until
from trioha.cli.demo_clients import (
    NO_ANSWER,
    TOPIC,
    ClientKind,
    ClientLedger,
    chosen_clients,
    clients_name,
    make_topic,
    open_clients,
)
from trioha.cli.rocketmq_jars import JarsError, client_jars
from trioha.client.cluster import open_cluster
from trioha.errors import TriohaError, leaves_of
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import response_to

# -- the ledger ----------------------------------------------------------------------------------------------


def ledger_of(*numbers: int) -> ClientLedger:
    """Messages that were stored in two queues, in turn, by their numbers."""
    ledger = ClientLedger()
    for number in numbers:
        ledger.note_sent(number, "PUT_OK", (number % 2, number // 2))
    return ledger


def receive(ledger: ClientLedger, *numbers: int) -> None:
    for number in numbers:
        ledger.note_received(number, (number % 2, number // 2))


def test_messages_that_are_received_once_in_order_are_no_finding():
    ledger = ledger_of(0, 1, 2, 3)
    receive(ledger, 1, 0, 2, 3)
    assert ledger.to_json() == {
        "produced": 4, "statuses": {"PUT_OK": 4}, "consumed": 4, "lost": 0, "duplicated": 0, "outOfOrder": 0,
    }  # fmt: skip
    assert (ledger.queues, ledger.misplaced) == (2, 0)


def test_a_stored_message_that_is_not_received_is_lost():
    ledger = ledger_of(0, 1, 2)
    receive(ledger, 0, 2)
    assert ledger.lost == 1


def test_a_message_without_an_answer_is_not_lost_and_may_be_received():
    ledger = ledger_of(0)
    ledger.note_sent(1, NO_ANSWER)
    ledger.note_sent(2, NO_ANSWER)
    receive(ledger, 0, 1)
    assert (ledger.produced, ledger.consumed, ledger.lost) == (3, 2, 0)
    assert ledger.statuses == {"PUT_OK": 1, NO_ANSWER: 2}


def test_a_message_that_is_received_again_is_duplicated_and_in_order():
    ledger = ledger_of(0, 2)
    receive(ledger, 0, 2, 0)
    assert (ledger.consumed, ledger.duplicated, ledger.out_of_order) == (2, 1, 0)


def test_a_message_after_a_later_one_of_its_queue_is_out_of_order():
    ledger = ledger_of(0, 1, 2, 4)
    receive(ledger, 0, 4, 1, 2)
    assert ledger.out_of_order == 1


def test_a_message_at_another_offset_than_its_send_was_told_is_misplaced():
    ledger = ledger_of(0, 1)
    ledger.note_received(0, (0, 0))
    ledger.note_received(1, (1, 7))
    assert ledger.misplaced == 1


async def test_a_wait_ends_when_its_condition_holds_or_in_time(autojump_clock):
    ledger = ledger_of(0)
    async with trio.open_nursery() as nursery:

        async def receive_later() -> None:
            await trio.sleep(5)
            receive(ledger, 0)

        nursery.start_soon(receive_later)
        assert await ledger.wait(lambda: not ledger.lost, timeout_s=30)
    assert trio.current_time() == 5
    assert not await ledger.wait(lambda: ledger.consumed > 1, timeout_s=30)
    assert trio.current_time() == 35


async def test_the_wait_for_messages_ends_60_virtual_seconds_after_the_last_one(autojump_clock):
    ledger = ledger_of(*range(10))
    async with trio.open_nursery() as nursery:

        async def receive_slowly() -> None:
            for number in range(5):
                await trio.sleep(50)
                receive(ledger, number)

        nursery.start_soon(receive_slowly)
        await ledger.wait_received()
    assert trio.current_time() == 310
    receive(ledger, *range(5, 10))
    await ledger.wait_received()
    assert trio.current_time() == 310


# -- the topic -----------------------------------------------------------------------------------------------


class SlowBroker:
    """A broker that makes topics; the name server has them when it registers, after some seconds."""

    def __init__(self, fake, *, after_s):
        self.fake, self.after_s, self.made = fake, after_s, []

    async def register(self, topic):
        await trio.sleep(self.after_s)
        self.fake.handlers[NAME_SERVER].topics[topic] = route_body({"broker-a": 4})

    async def __call__(self, asked, _peer):
        if asked.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            self.made.append(asked.ext_fields["topic"])
        return response_to(asked, ResponseCode.SUCCESS)


@pytest.mark.parametrize("after_s", [0, 45])
async def test_the_topic_is_made_however_late_broker_and_name_server_are(autojump_clock, after_s):
    log: list[str] = []
    async with fake_cluster(ns=FakeNameServer()) as fake, trio.open_nursery() as nursery:
        broker = SlowBroker(fake, after_s=after_s)
        fake.add("broker-a:10911", broker)
        nursery.start_soon(broker.register, "TBW102")

        async def register_made() -> None:
            while not broker.made:  # noqa: ASYNC110
                await trio.sleep(0.1)
            await broker.register(TOPIC)

        nursery.start_soon(register_made)
        async with opened(fake) as cluster:
            await make_topic(cluster, log=log.append)
    assert broker.made == [TOPIC]
    assert 2 * after_s <= trio.current_time() < 2 * after_s + 2
    assert log == ["waiting for the name server to have TopicDemoClients"] * (2 * after_s // 10)


async def test_a_topic_that_never_comes_is_an_error_after_5_virtual_minutes(autojump_clock):
    async with fake_cluster(ns=FakeNameServer()) as fake, opened(fake) as cluster:
        with pytest.raises(TriohaError, match="waited 300 s for the name server to have TopicDemoClients"):
            await make_topic(cluster, log=print)


# -- the jars ------------------------------------------------------------------------------------------------


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Puts shell scripts on a PATH with little else, and the cache into the test's folder."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def make(**scripts: str) -> None:
        for name, script in {"java": "exit 0", "javac": "echo javac 17.0.1", **scripts}.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)

    return make


async def test_the_client_is_fetched_once(tools, tmp_path):
    calls = tmp_path / "calls"
    tools(mvn=f"echo mvn >> {calls}; mkdir lib; touch lib/rocketmq-client-5.5.0.jar")
    log: list[str] = []
    found = [await client_jars(log=log.append) for _ in range(2)]
    assert found == [tmp_path / "cache/trioha-interop/5.5.0-client/lib"] * 2
    assert calls.read_text() == "mvn\n"
    assert log == ["fetching RocketMQ 5.5.0's client from Maven Central, once"]
    assert [path.name for path in (tmp_path / "cache/trioha-interop").iterdir()] == ["5.5.0-client"]


async def test_a_client_of_another_project_is_fetched_anew(tools, tmp_path):
    tools(mvn="mkdir lib; touch lib/rocketmq-client-5.5.0.jar")
    folder = (await client_jars(log=lambda _: None)).parent
    (folder / "pom.xml").write_text("another")
    (folder / "lib/old.jar").touch()
    await client_jars(log=lambda _: None)
    assert [path.name for path in (folder / "lib").iterdir()] == ["rocketmq-client-5.5.0.jar"]


async def test_a_maven_that_fails_gives_the_reason_and_leaves_nothing(tools, tmp_path):
    tools(mvn="echo; echo '[ERROR] no network'; exit 1")
    with pytest.raises(JarsError, match=r"`mvn` ended with 1: \[ERROR\] no network"):
        await client_jars(log=lambda _: None)
    assert list((tmp_path / "cache/trioha-interop").iterdir()) == []


async def test_cancellation_ends_maven(tools, tmp_path):
    pid_file = tmp_path / "pid"
    tools(mvn=f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: client_jars(log=lambda _: None))
        await until(pid_file.exists)
        pid = pid_file.read_text()
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    assert list((tmp_path / "cache/trioha-interop").iterdir()) == []


async def test_without_rocketmqs_client_the_demo_uses_its_own_and_says_why(tools):
    tools(javac="echo javac 11.0.2")
    log: list[str] = []
    assert await chosen_clients(ClientKind.AUTO, log=log.append) is None
    (line,) = log
    assert line == (
        "producer and consumer: trioha's own; RocketMQ's clients need Maven and a JDK of 17 or newer, "
        "but `javac -version` prints javac 11.0.2"
    )
    with pytest.raises(
        JarsError, match=r"RocketMQ's clients need Maven .*, but `javac -version` prints javac 11"
    ):
        await chosen_clients(ClientKind.JAVA, log=log.append)
    assert await chosen_clients(ClientKind.TRIOHA, log=log.append) is None
    assert log[1:] == ["producer and consumer: trioha's own"]


# -- the clients ---------------------------------------------------------------------------------------------


@pytest.fixture
def name_server(start_node):
    """The name server of a running node."""
    address = f"127.0.0.1:{free_port()}"
    start_node(role="ASYNC_MASTER", namesrvAddr=address, **{"trioha.withNamesrv": "true"})
    return address


@pytest.mark.process
@pytest.mark.parametrize(
    "kind",
    [ClientKind.TRIOHA, pytest.param(ClientKind.JAVA, marks=[pytest.mark.interop, pytest.mark.full])],
    ids=lambda kind: kind.value,
)
async def test_all_messages_are_received_in_order(kind, name_server, tmp_path):
    if kind is ClientKind.JAVA and (missing := missing_tools()) is not None:
        pytest.skip(missing)
    log: list[str] = []
    jars = await chosen_clients(kind, log=log.append)
    assert log[-1] == f"producer and consumer: {clients_name(jars)}"
    ledger = ClientLedger()
    async with open_cluster(name_servers=(name_server,)) as cluster:
        await make_topic(cluster, log=log.append)
    async with open_clients(
        ledger, jars=jars, name_server=name_server, folder=tmp_path, log=log.append
    ) as clients:
        assert await ledger.wait(lambda: ledger.produced >= 50, timeout_s=60)
        await clients.finish()
        produced = ledger.produced
        assert await ledger.wait(lambda: not ledger.lost, timeout_s=60)
    assert ledger.to_json() == {
        "produced": produced, "statuses": {"PUT_OK": produced}, "consumed": produced, "lost": 0,
        "duplicated": 0, "outOfOrder": 0,
    }  # fmt: skip
    assert (ledger.queues, ledger.misplaced) == (4, 0)


async def test_a_jvm_that_ends_is_an_error_with_the_end_of_its_log(tools, tmp_path):
    tools(java="echo cannot start >&2; exit 1")
    with pytest.raises(BaseExceptionGroup) as raised:
        async with open_clients(
            ClientLedger(), jars=tmp_path, name_server="127.0.0.1:1", folder=tmp_path, log=print
        ):
            pytest.fail("not reached")
    (error,) = leaves_of(raised.value)
    assert isinstance(error, TriohaError)
    assert str(error) == "RocketMQ's clients ended; their log ends:\ncannot start"
