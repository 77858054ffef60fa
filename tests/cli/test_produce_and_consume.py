"""`trioha produce` and `trioha consume`: messages as JSON lines, and both on a node."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import cast

import pytest
import trio
import trio.testing

from tests.node_process import TriohaNode, run_trioha
from tests.ports import free_port
from trioha.cli.clients import ClusterAddress, message_of_json, message_to_json
from trioha.cli.consume import WRITE_GRACE_S, Output, Printing, parse_start
from trioha.cli.produce import LINE_BYTES_MAX, LineReader
from trioha.client.consumer import Consumer, Start, StartAt
from trioha.client.messages import Message, ReceivedMessage
from trioha.errors import ConfigError
from trioha.remoting.route import MessageQueue

TRIOHA = [sys.executable, "-m", "trioha"]
RECEIVED = ReceivedMessage(
    MessageQueue("T", "broker-a", 3),
    7,
    b"hello",
    {"KEYS": "k1 k2", "TAGS": "x", "UNIQ_KEY": "id", "WAIT": "true", "a": "b"},
    "0A00000100002A9F00000000000003E8",
    111,
    222,
)


def test_a_received_message_as_json_has_its_place_its_properties_and_its_body() -> None:
    assert message_to_json(RECEIVED) == {
        "topic": "T", "brokerName": "broker-a", "queueId": 3, "queueOffset": 7, "msgId": "id",
        "offsetMsgId": "0A00000100002A9F00000000000003E8", "bornTimestamp": 111, "storeTimestamp": 222,
        "reconsumeTimes": 0, "flag": 0, "tags": "x", "keys": ["k1", "k2"], "properties": {"a": "b"},
        "body": "hello",
    }  # fmt: skip


@pytest.mark.parametrize("body", [b"text \xe2\x82\xac", b"\xff\x00binary"])
def test_what_consume_prints_is_what_produce_reads(body: bytes) -> None:
    received = ReceivedMessage(
        RECEIVED.queue, 0, body, RECEIVED.properties, RECEIVED.offset_message_id, 111, 222, 5
    )
    line = json.loads(json.dumps(message_to_json(received)))
    expected = Message("T", body, tag="x", keys=("k1", "k2"), properties={"a": "b"}, flag=5)
    assert message_of_json(line, topic=None) == (expected, None)


def test_an_object_for_produce_needs_a_body_only() -> None:
    assert message_of_json({"body": "x"}, topic="T") == (Message("T", b"x"), None)
    message, key = message_of_json(
        {"body": "x", "topic": "U", "keys": "a b", "shardingKey": "s", "delayLevel": 3}, topic="T"
    )
    assert (message, key) == (Message("U", b"x", keys=("a", "b"), delay_level=3), "s")


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"body": 5},
        {"body": "x", "bodyBase64": "eA=="},
        {"bodyBase64": "?"},
        {"body": "\ud800"},
        {"body": "x", "keys": [1]},
        {"body": "x", "properties": {"a": 1}},
        {"body": "x", "delayLevel": -1},
        {"body": "x", "flag": 1 << 31},
        {"body": "x", "tag": "misspelt"},
        {"bodyBase64": "eA==", "compression": "zstd"},
    ],
)
def test_an_object_that_is_not_a_message_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is for people
        message_of_json(value, topic="T")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("first", StartAt(Start.FIRST)),
        ("last", StartAt(Start.LAST)),
        ("1700000000000", StartAt(Start.TIME, 1_700_000_000_000)),
        ("2026-01-31T12:00:00Z", StartAt(Start.TIME, 1_769_860_800_000)),
        ("2026-01-31T12:00:00.5+00:00", StartAt(Start.TIME, 1_769_860_800_500)),
    ],
)
def test_a_start_is_a_word_or_a_time(text: str, start: StartAt) -> None:
    assert parse_start(text) == start


@pytest.mark.parametrize("text", ["", "begin", "-5", "99999999999999999999", "2026-13-01"])
def test_another_start_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--from"):
        parse_start(text)


def test_name_servers_come_from_the_option_the_environment_or_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "c:1")
    assert ClusterAddress.of(namesrv="a:1;b:2", broker=None, queues=4).name_servers == ("a:1", "b:2")
    assert ClusterAddress.of(namesrv=None, broker=None, queues=4).name_servers == ("c:1",)
    monkeypatch.delenv("NAMESRV_ADDR")
    assert ClusterAddress.of(namesrv=None, broker=None, queues=4).name_servers == ("127.0.0.1:9876",)
    with pytest.raises(ConfigError, match="--broker"):
        ClusterAddress.of(namesrv="a:1", broker="b:2", queues=4)


async def lines_of(data: bytes, *, read_bytes: int = 64 * 1024) -> list[tuple[int, bytes]]:
    """The lines of a pipe that has `data`."""
    read_fd, write_fd = os.pipe()
    found = []
    try:
        os.write(write_fd, data)
        os.close(write_fd)
        reader = LineReader(read_fd, read_bytes=read_bytes)
        while (line := await reader.next()) is not None:
            found.append(line)
    finally:
        os.close(read_fd)
    return found


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 5, 100])
async def test_lines_are_numbered_and_blank_ones_left_out(read_bytes: int) -> None:
    lines = await lines_of(b"a\nbc\r\n\n\nlast", read_bytes=read_bytes)
    assert lines == [(1, b"a"), (2, b"bc"), (5, b"last")]
    assert await lines_of(b"") == []


async def test_a_line_without_an_end_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioha.cli.produce.LINE_BYTES_MAX", 1000)
    assert LINE_BYTES_MAX > 1000
    with pytest.raises(ConfigError, match="line 2 is longer than 1000 bytes"):
        await lines_of(b"a\n" + b"x" * 1001)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TriohaNode, str]]:
    """A node with a name server in it, and that one's address; each test has topics of its own."""
    address, folder = f"127.0.0.1:{free_port()}", tmp_path_factory.mktemp("node")
    settings = {"namesrvAddr": address, "trioha.withNamesrv": "true"}
    node = TriohaNode(folder / "store", role="ASYNC_MASTER", **settings)
    yield node, address
    node.stop()


@pytest.fixture
def name_server(node: tuple[TriohaNode, str]) -> str:
    return node[1]


def produce(name_server: str, lines: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [*TRIOHA, "produce", "--namesrv", name_server, *arguments],
        input=lines,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def consume(name_server: str, *arguments: str) -> list[dict[str, object]]:
    done = run_trioha("consume", "--namesrv", name_server, *arguments)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.process
def test_lines_that_are_produced_are_consumed_in_order(name_server: str) -> None:
    done = produce(name_server, b"".join(b"line-%d\n" % n for n in range(40)), "Lines", "--json")
    assert done.returncode == 0, done.stderr.decode()
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["line"] for result in results] == list(range(1, 41))
    assert {result["status"] for result in results} == {"PUT_OK"}
    messages = consume(name_server, "Lines", "--from", "first")
    by_place = {(message["queueId"], message["queueOffset"]): message for message in messages}
    for result in results:
        message = by_place[result["queueId"], result["queueOffset"]]
        assert message["body"] == f"line-{result['line'] - 1}"
        assert message["msgId"] == result["msgId"]
        assert message["offsetMsgId"] == result["offsetMsgId"]


@pytest.mark.process
def test_a_group_continues_where_it_was_and_a_limit_ends_it(name_server: str) -> None:
    assert produce(name_server, b"1\n2\n3\n4\n5\n", "Grouped", "--queues", "1").returncode == 0
    arguments = ("Grouped", "--group", "g", "--from", "first")
    assert [message["body"] for message in consume(name_server, *arguments, "--limit", "2")] == ["1", "2"]
    assert [message["body"] for message in consume(name_server, *arguments)] == ["3", "4", "5"]
    assert consume(name_server, *arguments) == []


@pytest.mark.process
def test_messages_can_be_copied_to_another_topic(name_server: str) -> None:
    objects = [
        {"body": "a", "tags": "x", "keys": ["k1", "k2"], "properties": {"p": "q"}},
        {"bodyBase64": base64.b64encode(b"\xff\xfe").decode(), "shardingKey": "s"},
        {"body": "b", "tags": "y"},
    ]
    lines = "".join(json.dumps(value) + "\n" for value in objects).encode()
    assert produce(name_server, lines, "Source", "--ndjson").returncode == 0
    source = consume(name_server, "Source", "--from", "first")
    copies = "".join(json.dumps({**message, "topic": "Copy"}) + "\n" for message in source).encode()
    assert produce(name_server, copies, "--ndjson").returncode == 0
    copied = consume(name_server, "Copy", "--from", "first")

    def content(message: dict[str, object]) -> str:
        kept = {name: message.get(name) for name in ("body", "bodyBase64", "tags", "keys")}
        return json.dumps(kept, sort_keys=True)

    assert sorted(map(content, copied)) == sorted(map(content, source))
    assert len(consume(name_server, "Copy", "--from", "first", "--tags", "x || y")) == 2


@pytest.mark.process
def test_a_line_that_is_not_a_message_is_reported_and_the_others_are_sent(name_server: str) -> None:
    done = produce(name_server, b'{"body":"a"}\nnot json\n{"body":"b"}\n', "--topic", "Mixed", "--ndjson")
    assert done.returncode == 1
    assert done.stdout.split() == [b"PUT_OK:", b"2", b"INVALID:", b"1"]
    assert b"INVALID: line 2" in done.stderr


@pytest.mark.process
def test_follow_waits_for_messages_until_a_signal_and_commits(name_server: str) -> None:
    process = subprocess.Popen(
        [
            *TRIOHA, "consume", "Followed", "--namesrv", name_server, "--group", "g", "--follow",
            "--from", "first",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        # The consumer may start before or after the topic is created.
        assert produce(name_server, b"first\n", "--topic", "Followed").returncode == 0
        assert json.loads(process.stdout.readline())["body"] == "first"
        process.terminate()
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, stdout) == (0, b""), stderr.decode()
    assert consume(name_server, "Followed", "--group", "g", "--from", "first") == []


class OneBatch:
    """A consumer that receives one batch and then nothing."""

    def __init__(self) -> None:
        self.received = False
        self.acknowledged: list[tuple[ReceivedMessage, ...]] = []

    async def receive(self) -> tuple[ReceivedMessage, ...]:
        if self.received:
            await trio.sleep_forever()
        self.received = True
        return (RECEIVED,)

    def acknowledge(self, batch: tuple[ReceivedMessage, ...]) -> None:
        self.acknowledged.append(batch)


class SlowReader:
    """Takes what is written when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = trio.Event(), threading.Event()

    def write(self, _batch: tuple[ReceivedMessage, ...]) -> int:
        trio.from_thread.run_sync(self.begun.set)
        self.may_end.wait()
        return 1

    def untaken_bytes(self) -> int:
        return 0


async def test_a_batch_that_is_being_printed_at_a_signal_is_acknowledged_when_it_is_out() -> None:
    consumer = OneBatch()
    reader = SlowReader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(Printing(cast("Consumer", consumer), cast("Output", reader)).run, limit=None)
        )
        await reader.begun.wait()
        nursery.cancel_scope.cancel()
        reader.may_end.set()
    assert consumer.acknowledged == [(RECEIVED,)]


async def test_a_reader_that_takes_nothing_delays_the_end_for_a_moment_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    consumer = OneBatch()
    reader = SlowReader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(Printing(cast("Consumer", consumer), cast("Output", reader)).run, limit=None)
        )
        # Time passes while the thread starts.
        await reader.begun.wait()
        cancelled_s = trio.current_time()
        nursery.cancel_scope.cancel()
    reader.may_end.set()
    assert trio.current_time() - cancelled_s == pytest.approx(WRITE_GRACE_S)
    assert consumer.acknowledged == []


@pytest.mark.process
def test_a_topic_that_does_not_exist_is_one_line_of_error(name_server: str) -> None:
    done = run_trioha("consume", "Nothing", "--namesrv", name_server)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no topic Nothing" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_a_load_receives_what_it_sends(node: tuple[TriohaNode, str]) -> None:
    done = run_trioha(
        *("load", "--broker", node[0].listen_address, "--topic", "Loaded", "--count", "500"),
        *("--consume", "--json"),
    )
    assert done.exit_code == 0, done.stderr
    consumed = json.loads(done.stdout)["consumed"]
    assert (consumed["received"], consumed["lost"], consumed["duplicates"]) == (500, 0, 0)
    assert 0 < consumed["endToEndMs"]["p50"] <= consumed["endToEndMs"]["max"]
