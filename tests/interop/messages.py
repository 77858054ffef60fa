"""Messages that consumers have received, as the Java driver describes them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.interop.java import JavaConsumer
from tests.waiting import wait_until
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.pretty_json import parse_pretty


def bodies(messages: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """How often each body came."""
    return Counter(message["body"] for message in messages)


def expected(number: int, prefix: str = "m") -> Counter[str]:
    """Bodies of `JavaDriver.produce`, each once."""
    return Counter(f"{prefix}{index}" for index in range(number))


def places(messages: Sequence[Mapping[str, Any]]) -> Counter[tuple[int, int]]:
    """How often each place of the queues came."""
    return Counter((message["queueId"], message["queueOffset"]) for message in messages)


def assert_order_within_queues(messages: Sequence[Mapping[str, Any]]) -> None:
    """A queue's messages came in its order; what came again does not count."""
    last: dict[tuple[str, int], int] = {}
    seen: set[tuple[str, int, int]] = set()
    for message in messages:
        place = (message["broker"], message["queueId"])
        if (*place, message["queueOffset"]) in seen:
            continue
        seen.add((*place, message["queueOffset"]))
        assert last.get(place, -1) < message["queueOffset"], (place, message)
        last[place] = message["queueOffset"]


def everything(
    consumer: JavaConsumer, acknowledged: set[str], ends: Mapping[int, int], *, what: str
) -> list[dict[str, Any]]:
    """What a consumer has received, once it has all that was acknowledged and every place of the queues.

    It may get more messages than there are places: those that it gets again.
    """
    wanted = {(queue_id, offset) for queue_id, end in ends.items() for offset in range(end)}
    messages: list[dict[str, Any]] = []

    def is_whole() -> bool:
        messages[:] = consumer.received(0)
        return wanted <= places(messages).keys() and acknowledged <= bodies(messages).keys()

    try:
        # A pull that 4.9.7 sent to a broker that was killed ends after 30 s; queues are locked each 20 s.
        wait_until(is_whole, what, within_s=120)
    except AssertionError as late:
        lost = sorted(acknowledged - bodies(messages).keys())
        skipped = sorted(wanted - places(messages).keys())
        raise AssertionError(f"lost {lost}, skipped {skipped}: {late}") from None
    return messages


def wait_for_offsets(root: Path, group: str, topic: str, number: int, *, within_s: float = 120.0) -> None:
    """Wait until the file of offsets says that the group has consumed so many messages."""
    deadline_s = time.monotonic() + within_s
    path = root / "config" / ConsumerOffsets.file_name
    while True:
        offsets = ConsumerOffsets()
        if path.exists():
            offsets.load(parse_pretty(path.read_text()))
        if sum(offsets.of_group(group, topic).values()) == number:
            return
        assert time.monotonic() < deadline_s, path.read_text()
        time.sleep(0.05)
