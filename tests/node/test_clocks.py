"""A wrong clock of a live node: it may say anything for a while, and nothing follows it for longer."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.node import shims
from tests.node.wire import Wire, now_ms, pull_from, send_to
from tests.node_process import FILE_BYTES, run_trioha
from tests.waiting import wait_until
from trioha.client.messages import ReceivedMessage, received_messages
from trioha.remoting.route import MessageQueue

HOUR_S = 3600
YEARS_S = 10 * 365 * 24 * HOUR_S
TOPIC = "Orders"


def send(wire: Wire, body: bytes, *, delay_level: int = 0, topic: str = TOPIC) -> None:
    properties = f"DELAY\x01{delay_level}\x02" if delay_level else ""
    assert wire.ask(send_to(topic, body, properties=properties)).code == 0


def next_message(wire: Wire, offset: int) -> ReceivedMessage:
    """The message at an offset of the topic's only queue, as soon as it is there."""
    answer = wire.ask(pull_from(TOPIC, offset, suspend_ms=15_000))
    (message, *_) = received_messages(answer.body, MessageQueue(TOPIC, "b", 0))
    return message


@pytest.mark.parametrize("jump_s", [HOUR_S, YEARS_S])
def test_after_a_clock_that_was_wrong_for_a_moment_delayed_messages_come_at_their_time(
    start_node, tmp_path, jump_s
):
    fault = tmp_path / "fault"
    node = start_node("store", role="ASYNC_MASTER", program=shims.program(fault))
    fault.write_text(str(jump_s))
    with Wire(node.listen_address) as wire:
        send(wire, b"ahead")
        assert next_message(wire, 0).store_timestamp_ms > now_ms() + jump_s * 1000 - 60_000
        fault.unlink()
        send(wire, b"delayed", delay_level=1)
        delivered = next_message(wire, 1)
        waited_ms = delivered.store_timestamp_ms - delivered.born_timestamp_ms
        assert (delivered.body, 1000 <= waited_ms < HOUR_S * 1000) == (b"delayed", True), waited_ms
        assert "store times go back" in node.log()
        assert node.status().time_steps == 1
    shown = run_trioha("status", "--wide", node.listen_address).stdout
    assert "store times went back 1 time since the start" in " ".join(shown.split())
    node.stop()
    node = start_node("store", role="ASYNC_MASTER")
    with Wire(node.listen_address) as wire:
        send(wire, b"again", delay_level=1)
        delivered = next_message(wire, 2)
        waited_ms = delivered.store_timestamp_ms - delivered.born_timestamp_ms
        assert (delivered.body, 1000 <= waited_ms < HOUR_S * 1000) == (b"again", True), waited_ms
    node.stop()


def test_a_start_with_a_wrong_clock_deletes_no_file_by_age_and_says_so(start_node, tmp_path):
    fault = tmp_path / "fault"
    settings = {
        "cleanResourceInterval": 50,
        "fileReservedTime": 1,
        "deleteWhen": ";".join(map(str, range(24))),
    }
    node = start_node("store", role="ASYNC_MASTER", program=shims.program(fault), **settings)
    with Wire(node.listen_address) as wire:
        while node.status().max_offset < 4 * FILE_BYTES:
            send(wire, bytes(20_000))
    node.stop()
    fault.write_text(str(YEARS_S))
    # Two starts: the files that the first one writes have times of that clock, and must not vouch for it.
    for _ in range(2):
        node = start_node("store", role="ASYNC_MASTER", program=shims.program(fault), **settings)
        wait_until(lambda found=node: found.status().clock_doubt != "", "the clock is doubted")
        assert node.status().min_offset == 0
        with Wire(node.listen_address) as wire:
            send(wire, b"by the wrong clock")
        assert "log files are not deleted" in node.log()
        shown = " ".join(run_trioha("status", "--wide", node.listen_address).stdout.split())
        assert "files that are old by the clock alone stay; check the clock" in shown
        node.stop()


def test_a_wrong_clock_deletes_nothing_of_an_archive_and_says_so(start_node, tmp_path):
    fault, url = tmp_path / "fault", f"file://{tmp_path}/archive"
    node = start_node("store", role="ASYNC_MASTER")
    with Wire(node.listen_address) as wire:
        while node.status().max_offset < 4 * FILE_BYTES:
            send(wire, bytes(20_000))
    for jump_s in (None, YEARS_S, YEARS_S):
        if jump_s is not None:
            fault.write_text(str(jump_s))
        command = [*shims.program(fault), "archive", str(tmp_path / "store"), "--to", url, "--keep", "1d"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert ("nothing is deleted by age; check the clock" in done.stderr) == (jump_s is not None)
        listed = json.loads(run_trioha("restore", url, "--list", "--json").stdout)
        assert listed["generations"][0]["firstOffset"] == 0
    node.stop()
