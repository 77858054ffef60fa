"""`trioha load`: messages, counts and output."""

import json
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from trioha.cli import main
from trioha.cli.load import Load, LoadPlan, LoadResult, parse_size, percentiles_ms, read_lines
from trioha.errors import ConfigError, PeerError
from trioha.recording.events import PutStatus
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.send_message import (
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    send_response,
)
from trioha.remoting.server import Handler, Peer, RemotingServer
from trioha.store.message_properties import parse_properties

MESSAGE_ID = "7F0000010000A8670000000000003494"


def stored(asked: RemotingCommand, status: PutStatus = PutStatus.PUT_OK) -> RemotingCommand:
    header = SendMessageRequestHeader.of(asked)
    return send_response(asked, status, header=SendMessageResponseHeader(MESSAGE_ID, header.queue_id, 0))


class Broker:
    """Stores the sends; `answer` chooses the result of each put."""

    def __init__(self, answer: Callable[[RemotingCommand, int], RemotingCommand] | None = None) -> None:
        self.sends: list[tuple[SendMessageRequestHeader, bytes]] = []
        self._answer = answer or (lambda asked, _: stored(asked))

    def __call__(self, asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        self.sends.append((SendMessageRequestHeader.of(asked), bytes(asked.body)))
        return self._answer(asked, len(self.sends) - 1)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.sends]


async def start(
    handler: Handler, port: int, task_status: trio.TaskStatus[tuple[trio.CancelScope, int]]
) -> None:
    """A server that ends with its scope."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def listening(task_status: trio.TaskStatus[object]) -> None:
                await RemotingServer(handler).serve(
                    host="127.0.0.1",
                    port=port,
                    task_status=task_status,  # type: ignore[arg-type]
                )

            ((_, bound),) = await nursery.start(listening)
            task_status.started((scope, bound))


async def run(handler: Handler, **changes: object) -> LoadResult:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            _, port = await nursery.start(start, handler, 0)
            load = Load(plan_for(port, **changes))
            await load.run()
            nursery.cancel_scope.cancel()
    return load.result()


def plan_for(port: int, **changes: object) -> LoadPlan:
    settings: dict[str, object] = {"topic": "TopicLoad", "count": 100, **changes}
    return LoadPlan(Address("127.0.0.1", port), **settings)  # type: ignore[arg-type]


async def test_every_message_is_sent_once_as_a_java_client_would():
    broker = Broker()
    result = await run(broker, count=100, size_bytes_min=10, size_bytes_max=20, queues=3)
    assert result.statuses == {"PUT_OK": 100}
    assert (result.count, result.complete, result.all_ok) == (100, True, True)
    assert result.bytes == sum(map(len, broker.bodies))
    assert {len(body) for body in broker.bodies} == set(range(10, 21))
    assert sorted(header.queue_id for header, _ in broker.sends) == sorted(n % 3 for n in range(100))
    properties = [parse_properties(header.properties.encode()) for header, _ in broker.sends]
    assert all(set(each) == {"UNIQ_KEY", "WAIT"} for each in properties)
    keys = {each["UNIQ_KEY"] for each in properties}
    assert len(keys) == 100
    assert all(len(key) == 32 and key.startswith("7F000001") for key in keys)
    assert {header.topic for header, _ in broker.sends} == {"TopicLoad"}


async def test_the_same_seed_gives_the_same_bodies_and_another_seed_others():
    bodies = []
    for seed in (1, 1, 2):
        broker = Broker()
        await run(broker, count=50, size_bytes_min=0, size_bytes_max=100_000, seed=seed, concurrency=7)
        bodies.append(sorted(broker.bodies))
    assert bodies[0] == bodies[1]
    assert bodies[0] != bodies[2]


async def test_lines_are_repeated_up_to_the_count():
    broker = Broker()
    await run(broker, lines=(b"one", b"two", b"three"), count=7, concurrency=1)
    assert broker.bodies == [b"one", b"two", b"three", b"one", b"two", b"three", b"one"]


async def test_each_put_status_is_counted_by_its_name():
    statuses = list(PutStatus)

    def answer(asked: RemotingCommand, number: int) -> RemotingCommand:
        if number < len(statuses):
            return stored(asked, statuses[number])
        return response_to(asked, 17, remark="topic not exist") if number == len(statuses) else stored(asked)

    result = await run(Broker(answer), count=20)
    assert result.statuses == {"PUT_OK": 20 - len(statuses), "TOPIC_NOT_EXIST": 1} | {
        status.name: 1 for status in statuses if status is not PutStatus.PUT_OK
    }
    assert result.remarks["TOPIC_NOT_EXIST"] == "topic not exist"
    assert result.remarks["IN_SYNC_REPLICAS_NOT_ENOUGH"] == "in-sync replicas not enough"
    assert not result.all_ok
    assert result.complete


async def test_a_missing_answer_is_a_timeout():
    async def wait() -> RemotingCommand:
        await trio.sleep_forever()
        raise AssertionError("sleeps forever")

    def handler(asked: RemotingCommand, peer: Peer) -> RemotingCommand | Awaitable[RemotingCommand]:
        return wait() if SendMessageRequestHeader.of(asked).queue_id == 3 else stored(asked)

    result = await run(handler, count=8, timeout_s=0.1)
    assert result.statuses == {"PUT_OK": 6, "TIMEOUT": 2}
    assert set(result.latency_ms) == {"p50", "p90", "p99", "p99.9", "max"}


async def test_a_lost_connection_costs_only_the_messages_in_flight():
    held = trio.Event()
    answered = 0

    async def handler(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        nonlocal answered
        if answered >= 20 and not held.is_set():
            held.set()
        if held.is_set():
            await trio.sleep_forever()
        answered += 1
        return stored(asked)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            scope, port = await nursery.start(start, handler, 0)
            load = Load(plan_for(port, count=100, concurrency=4))
            done = trio.Event()

            async def run_load() -> None:
                await load.run()
                done.set()

            nursery.start_soon(run_load)
            await held.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            scope.cancel()
            await trio.sleep(0.1)
            again = Broker()
            await nursery.start(start, again, port)
            await done.wait()
            nursery.cancel_scope.cancel()
    result = load.result()
    assert result.statuses == {"PUT_OK": 96, "CONNECTION_LOST": 4}
    assert answered + len(again.sends) == 96
    assert (result.reconnects, result.complete) == (1, True)


async def test_an_unreachable_broker_ends_the_load_with_the_figures_so_far():
    broker = Broker()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            scope, port = await nursery.start(start, broker, 0)
            load = Load(plan_for(port, count=1_000_000, reconnect_timeout_s=0.2))
            nursery.start_soon(load.run)
            while len(broker.sends) < 50:  # noqa: ASYNC110 - the broker is a plain function
                await trio.sleep(0.005)
            scope.cancel()
    result = load.result()
    assert not result.complete
    assert not result.all_ok
    assert 50 <= result.count < 1_000_000
    assert (
        "connection" in result.remarks["CONNECTION_LOST"]
        or "cannot connect" in result.remarks["CONNECTION_LOST"]
    )


async def test_a_failing_first_connection_is_a_peer_error():
    with trio.fail_after(60), pytest.raises(PeerError, match="cannot connect"):
        await Load(plan_for(1)).run()


async def test_the_rate_is_kept(autojump_clock):
    moments: list[float] = []

    def handler(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        moments.append(trio.current_time())
        return stored(asked)

    # Sockets and virtual time: the clock leaps only once nothing is ready, so it may leap while bytes travel.
    autojump_clock.autojump_threshold = 0.05
    result = await run(handler, count=11, rate=10.0, concurrency=4)
    assert result.seconds == pytest.approx(1.0, abs=0.2)
    assert moments == sorted(moments)
    assert moments[-1] - moments[0] == pytest.approx(1.0, abs=0.2)


def test_percentiles_are_by_nearest_rank():
    names = ("p50", "p90", "p99", "p99.9", "max")
    assert percentiles_ms(array("q")) == {}
    assert percentiles_ms(array("q", [5_000_000])) == dict.fromkeys(names, 5.0)
    latencies = array("q", [n * 1_000_000 for n in range(1000, 0, -1)])
    assert percentiles_ms(latencies) == dict(zip(names, (500.0, 900.0, 990.0, 999.0, 1000.0), strict=True))


def test_sizes_are_one_number_or_two():
    for text, sizes in (("7", (7, 7)), ("0..9", (0, 9)), ("5..5", (5, 5))):
        assert parse_size(text) == sizes
    for text in ("", "..", "1..", "..1", "1.2", "-1", "1k", "9..3", "99999999", "1..2..3", "²"):
        with pytest.raises(ConfigError, match="--size"):
            parse_size(text)


def test_blank_lines_are_skipped(tmp_path):
    file = tmp_path / "lines"
    file.write_bytes("eins\r\n\nzwei\nüber".encode())
    assert read_lines(file) == (b"eins", b"zwei", "über".encode())
    file.write_bytes(b"\n\n")
    with pytest.raises(ConfigError, match="no line to send"):
        read_lines(file)
    with pytest.raises(ConfigError, match="No such file"):
        read_lines(tmp_path / "none")


# The command, in a process of its own.


@contextmanager
def broker_thread(handler: Handler) -> Iterator[str]:
    """The address of a broker in a thread."""
    ready = threading.Event()
    address: list[str] = []
    stop: list[Callable[[], None]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            scope, port = await nursery.start(start, handler, 0)
            token = trio.lowlevel.current_trio_token()
            stop.append(lambda: token.run_sync_soon(scope.cancel))
            address.append(f"127.0.0.1:{port}")
            ready.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(60)
    try:
        yield address[0]
    finally:
        stop[0]()
        thread.join(60)
        assert not thread.is_alive()


def trioha(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trioha", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.process
def test_the_command_prints_one_json_object_and_exits_0_if_all_was_put():
    with broker_thread(Broker()) as address:
        process = trioha("load", "--broker", address, "--count", "200", "--size", "10..20", "--json")
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    figures = json.loads(output)
    assert figures["statuses"] == {"PUT_OK": 200}
    assert figures["count"] == 200
    assert set(figures["latencyMs"]) == {"p50", "p90", "p99", "p99.9", "max"}
    assert figures["messagesPerSecond"] == pytest.approx(200 / figures["seconds"], rel=0.2)
    assert 2000 <= figures["bytes"] <= 4000


def name_server_of(masters: dict[str, str]) -> Handler:
    """A name server that lists a master of each name."""
    table = {
        name: {"brokerName": name, "cluster": "c", "brokerAddrs": {"0": address}}
        for name, address in masters.items()
    }

    def answer(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        assert asked.code == RequestCode.GET_BROKER_CLUSTER_INFO
        return response_to(asked, 0, body=json.dumps({"brokerAddrTable": table}).encode())

    return answer


@pytest.mark.parametrize("named", [True, False])
def test_the_master_of_a_load_is_that_of_a_name_server(named, capsys, refusal):
    broker = Broker()
    with broker_thread(broker) as address:
        masters = {"broker-a": address, **({"broker-b": "127.0.0.1:1"} if named else {})}
        with broker_thread(name_server_of(masters)) as name_server:
            arguments = ["load", "--namesrv", name_server, "--count", "3", "--json"]
            assert main([*arguments, *(["--broker", "broker-a"] if named else [])]) == 0
            assert json.loads(capsys.readouterr().out)["statuses"] == {"PUT_OK": 3}
            if named:
                both = "there are masters of broker-a, broker-b: give HOST:PORT, or one of these names"
                assert f"--broker: is needed; {both}" in refusal(*arguments)
            unknown = refusal(*arguments, "--broker", "broker-x")
            assert "lists no master of 'broker-x'" in unknown
            assert "is an address, and --namesrv is given" in refusal(*arguments, "--broker", "a:1")


@pytest.mark.process
def test_the_command_sends_each_line_of_a_file_once_and_exits_1_if_not_all_was_put(tmp_path):
    file = tmp_path / "lines"
    file.write_text("one\ntwo\nthree\n")
    broker = Broker(
        lambda asked, number: stored(asked, PutStatus.SLAVE_NOT_AVAILABLE if number else PutStatus.PUT_OK)
    )
    with broker_thread(broker) as address:
        process = trioha("load", "--broker", address, "--from", str(file))
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert sorted(broker.bodies) == [b"one", b"three", b"two"]
    rows = [line.split() for line in output.splitlines()]
    assert ["SLAVE_NOT_AVAILABLE", "2"] in rows
    assert ["PUT_OK", "1"] in rows


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_an_interrupt_ends_the_command_with_the_figures_so_far(number):
    enough = threading.Event()

    def answer(asked: RemotingCommand, count: int) -> RemotingCommand:
        if count == 30:
            enough.set()
        return stored(asked)

    with broker_thread(Broker(answer)) as address:
        process = trioha("load", "--broker", address, "--count", "1000000", "--rate", "500", "--json")
        assert enough.wait(60)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    figures = json.loads(output)
    assert list(figures["statuses"]) == ["PUT_OK"]
    assert 20 <= figures["count"] < 100_000
    assert not figures["complete"]
    assert errors.startswith("ended early: ")


def test_bad_input_is_reported_in_one_line_with_exit_code_2(refusal):
    for arguments, says in (
        (["--broker", "127.0.0.1:1"], "127.0.0.1:1: cannot connect: Connection refused"),
        (["--broker", "nowhere:"], "'nowhere:' is not an address"),
        (["--namesrv", "127.0.0.1:1"], "127.0.0.1:1: cannot connect: Connection refused"),
        (["--broker", "127.0.0.1:1", "--count", "0"], "--count: 0 is too few"),
        (["--broker", "127.0.0.1:1", "--rate", "0"], "--rate: 0 is not more than 0"),
        (["--broker", "127.0.0.1:1", "--rate", "nan"], "--rate: nan"),
        (["--broker", "127.0.0.1:1", "--from", "/nonexistent"], "No such file or directory"),
    ):
        assert says in refusal("load", *arguments)
