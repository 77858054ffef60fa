"""Pipelines of commands lose no message, whatever ends a part of them."""

import json
import os
import subprocess
import sys
from collections import Counter
from functools import partial

import pytest
import trio

from tests.node_process import TriohaNode, run_trioha
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.cli.consume import Output, Printing
from trioha.client.messages import ReceivedMessage
from trioha.remoting.route import MessageQueue

TRIOHA = [sys.executable, "-m", "trioha"]


def received(number):
    return ReceivedMessage(MessageQueue("T", "a", 0), number, b"%d" % number, {}, "id", 1, 1)


class Batches:
    """A consumer of batches; the last one is followed by nothing."""

    def __init__(self, count):
        self.left = [(received(number),) for number in range(count)]
        self.acknowledged = []

    async def receive(self):
        if not self.left:
            await trio.sleep_forever()
        return self.left.pop(0)

    def acknowledge(self, batch):
        self.acknowledged += [message.queue_offset for message in batch]


async def test_what_is_printed_to_a_pipe_is_acknowledged_when_its_reader_has_read_it(autojump_clock):
    read_fd, write_fd = os.pipe()
    consumer = Batches(2)
    with os.fdopen(read_fd, "rb", buffering=0) as reader, os.fdopen(write_fd, "wb") as writer:
        output = Output(writer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(Printing(consumer, output).run, limit=None))
            while consumer.left or not output.untaken_bytes():  # noqa: ASYNC110 - threads have no event
                await trio.sleep(0.1)
            await trio.sleep(100)
            assert consumer.acknowledged == []
            first = reader.read(output.untaken_bytes() // 2)
            assert json.loads(first)["body"] == "0"
            await trio.sleep(1)
            assert consumer.acknowledged == [0]
            nursery.cancel_scope.cancel()
    assert consumer.acknowledged == [0]


async def test_a_reader_that_has_ended_ends_the_command(autojump_clock):
    read_fd, write_fd = os.pipe()
    # Without a buffer: what a broken pipe did not take would be written again when the file closes.
    with os.fdopen(write_fd, "wb", buffering=0) as writer:
        printing = Printing(Batches(1), Output(writer))
        with pytest.raises(BaseExceptionGroup) as ended:  # noqa: PT012 - the reader ends meanwhile
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(printing.run, limit=None))
                await trio.sleep(10)
                os.close(read_fd)
    assert ended.group_contains(BrokenPipeError)


class Broker:
    """A node with a name server, at the same addresses over all its starts."""

    def __init__(self, folder):
        self.name_server = f"127.0.0.1:{free_port()}"
        self._folder, self._port = folder, free_port()
        self.start()

    def start(self):
        self.node = TriohaNode(
            self._folder,
            role="ASYNC_MASTER",
            brokerName=self._folder.name,
            listenPort=self._port,
            namesrvAddr=self.name_server,
            **{"trioha.withNamesrv": "true"},
        )

    def bodies(self, topic, *options):
        said = run_trioha("consume", topic, "--namesrv", self.name_server, "--from", "first", *options)
        assert said.exit_code == 0, said.stderr
        return Counter(json.loads(line)["body"] for line in said.stdout.splitlines())


@pytest.fixture
def brokers(tmp_path):
    pair = [Broker(tmp_path / name) for name in ("source", "target")]
    yield pair
    for broker in pair:
        if broker.node.is_running:
            broker.node.kill()


def sent(broker, topic, count):
    """Bodies that the broker has."""
    bodies = [str(number) for number in range(count)]
    subprocess.run(
        [*TRIOHA, "produce", topic, "--namesrv", broker.name_server, "--concurrency", "16"],
        input="\n".join(bodies).encode(),
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=60,
    )
    return Counter(bodies)


@pytest.mark.process
def test_a_pipeline_to_a_broker_that_is_down_loses_nothing(brokers):
    source, target = brokers
    expected = sent(source, "Orders", 2000)
    target.node.kill()
    consume = [
        *TRIOHA,
        "consume",
        "Orders",
        "--namesrv",
        source.name_server,
        "--group",
        "g",
        "--from",
        "first",
    ]
    produce = [*TRIOHA, "produce", "--ndjson", "--namesrv", target.name_server, "--concurrency", "8"]
    with (
        subprocess.Popen(consume, stdout=subprocess.PIPE) as reading,
        subprocess.Popen(produce, stdin=reading.stdout, stdout=subprocess.PIPE, text=True) as sending,
    ):
        reading.stdout.close()
        target.start()
        assert sending.communicate(timeout=100)[0] == "PUT_OK: 2,000\n"
        assert (reading.wait(30), sending.returncode) == (0, 0)
    assert target.bodies("Orders") == expected
    assert source.bodies("Orders", "--group", "g") == Counter()


@pytest.mark.full
@pytest.mark.process
def test_a_copy_whose_target_is_killed_goes_on_and_one_that_is_ended_is_continued(brokers):
    source, target = brokers
    expected = sent(source, "Orders", 3000)
    copy = [
        *(*TRIOHA, "copy", "--topic", "Orders", "--from", source.name_server),
        *("--to", target.name_server, "--to-topic", "Copied"),
    ]
    with subprocess.Popen(copy, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: target.node.status().max_offset > 0, "the copy begins")
        target.node.kill()
        target.start()
        process.terminate()
        said, _ = process.communicate(timeout=60)
    first = target.bodies("Copied")
    # What was answered is stored; one message of each queue may be stored and its answer be lost.
    assert sum(first.values()) - int(said.split()[1].replace(",", "")) <= 4
    done = subprocess.run(copy, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    copied = target.bodies("Copied")
    assert copied.keys() == expected.keys()
    assert copied.total() <= expected.total() + 8
    assert subprocess.run(copy, capture_output=True, text=True, timeout=60, check=True).stdout == ""


@pytest.mark.process
def test_what_is_given_up_goes_to_a_file(brokers, tmp_path):
    source, _ = brokers
    failed = tmp_path / "failed"
    source.node.kill()
    done = subprocess.run(
        [
            *(*TRIOHA, "produce", "Orders", "--namesrv", source.name_server),
            *("--timeout", "0.5", "--failed", str(failed)),
        ],
        input=b"one\ntwo\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, failed.read_bytes()) == (1, b"one\ntwo\n"), done.stderr
