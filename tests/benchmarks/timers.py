"""Timers of a SYNC pair: how late messages come that are all due within one second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import quantiles
from typing import Final

from attrs import evolve

from tests.benchmarks.bench import Bench
from tests.benchmarks.clients import SETTLE_S
from tests.benchmarks.machine import Meter, standing_still
from tests.benchmarks.raw import BATCH, FIRST_OPAQUE, drive, max_offset, pull, send
from tests.benchmarks.systems import QUEUES, BenchmarkError, await_success, pair_of
from tests.benchmarks.table import Line
from tests.node.wire import Wire
from trioha.remoting.codec import encode
from trioha.store.message_properties import parse_properties
from trioha.store.record import Record, decode_record

IN_FLIGHT: Final = 64
AHEAD_S: Final = 15
"""From the first send to the second in which all are due: all are sent by then."""
WITHIN_S: Final = 60.0


def timers(bench: Bench) -> None:
    """Messages that are due in one second, one after the other: from its time to when each was stored."""
    number = bench.sizes.timers
    lines = {
        part: Line(
            f"{number:,} timers of one second: late, {part}",
            "ms",
            f"{number:,} timers",
            lower_is_better=True,
            has_goal=False,
        )
        for part in ("p50", "p99")
    }
    with ExitStack() as running:
        pairs = [
            running.enter_context(
                pair_of(
                    evolve(system, settings={**system.settings, "timerWheelEnable": "true"}),
                    bench.new_folder("timers"),
                )
            )
            for system in (bench.ours, bench.theirs)
        ]
        for pair, note in bench.turns("timers", pairs, name_of=lambda pair: pair.system.name):
            topic, name = bench.new_name("timers"), pair.system.name
            await_success(send(topic), pair.master.address, what=name)
            time.sleep(SETTLE_S)
            others = [pid for other in pairs if other is not pair for pid in other.pids]
            with standing_still(others):
                due_ms = (int(time.time()) + AHEAD_S) * 1000
                with Meter(pair.pids) as meter:
                    drive(
                        pair.master.address, _sends(topic, due_ms, number), in_flight=IN_FLIGHT, count=number
                    )
                    if time.time() * 1000 > due_ms:
                        raise BenchmarkError(f"{name} took longer for its sends than {AHEAD_S} s")
                    late_ms = _late_ms(pair.master.address, topic, number)
            cuts = quantiles(late_ms, n=100)
            for part, cut in (("p50", 49), ("p99", 98)):
                note(lines[part], name, cuts[cut], meter, units=1)


def _sends(topic: str, due_ms: int, number: int) -> Iterator[bytes]:
    """Frames of sends that are due one after the other within a second."""
    for index in range(number):
        asked = send(topic, index)
        properties = f"{asked.ext_fields['i']}TIMER_DELIVER_MS\x01{due_ms + 1000 * index // number}\x02"
        fields = {**asked.ext_fields, "i": properties}
        yield encode(evolve(asked, ext_fields=fields, opaque=FIRST_OPAQUE + index))


def _late_ms(address: str, topic: str, number: int) -> list[int]:
    """Of each timer, once all are delivered: from its time to that of its record."""
    deadline_s = time.monotonic() + AHEAD_S + WITHIN_S
    with Wire(address) as asking:
        while True:
            ends = [
                int(asking.ask(max_offset(topic, queue_id)).ext_fields["offset"])
                for queue_id in range(QUEUES)
            ]
            # The send that made the topic came first.
            if sum(ends) > number:
                break
            if time.monotonic() > deadline_s:
                raise BenchmarkError(f"{sum(ends) - 1} of {number} timers came")
            time.sleep(0.1)
        late = []
        for queue_id, end in enumerate(ends):
            for offset in range(0, end, BATCH):
                body = memoryview(bytes(asking.ask(pull(topic, queue_id, offset)).whole_body))
                late += _late_of(body)
    if len(late) != number:
        raise BenchmarkError(f"{len(late)} of {number} timers were read")
    return late


def _late_of(body: memoryview) -> Iterator[int]:
    while body:
        size = int.from_bytes(body[:4])
        record = decode_record(body[:size])
        assert isinstance(record, Record)
        due = parse_properties(record.properties_raw).get("TIMER_DELIVER_MS")
        if due is not None:
            yield record.store_timestamp_ms - int(due)
        body = body[size:]
