"""The metadata of a cluster: what its nodes answer to slaves, what their stores hold, and what must be there.

Theory of operation. Offsets are committed and copied all the time, and no check here depends on how fast that
goes: each compares with an event that was seen before.

- `CommitLedger` has what the master has acknowledged, by time, and what its disk had at its last start. A
  write of consumerOffset.json takes the table as it is after the write before it has ended: what was
  acknowledged by then is on the disk of a master that is killed (`CommitLedger.written`).
- `CopyWatch` reads the copies that pass a slave's link. What the master had acknowledged when a copy was
  asked for is in its answer; what was in the last answer that the slave has taken is in the slave's table.
  Both together: where the slave takes its master's place, no more is lost than what was committed since the
  last copy began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.faults.proxy import Direction
from trioha.errors import PeerError, RemoteProtocolError
from trioha.metadata.files import read_metadata
from trioha.metadata.pretty_json import parse_pretty
from trioha.remoting.client import open_client
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.status_reader import fetch_status

GROUP = "faults-readers"
"""The group whose offsets the producer commits."""
COPIED_WHOLE = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "topics.json",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "subscriptionGroup.json",
    RequestCode.GET_ALL_DELAY_OFFSET: "delayOffset.json",
}
"""Tables that a slave has as its master has them, and their files. Of consumer offsets it may have more: what
strangers have committed to it."""
OFFSETS_FILE = "consumerOffset.json"
ANSWERED_WITHIN_S = 10.0
COPY_PERIOD_S = 0.3
"""trioha.metadataSyncPeriod of the slaves: a copy begins so long after the end of the one before it."""
_AGE_ROUNDING_S = 0.001

Queue = tuple[str, int]
"""Topic and queue id."""
Offsets = Mapping[Queue, int]
"""Committed offsets of `GROUP`."""


def now_s() -> float:
    """The clock of commits and copies: that of the files' times, which are at most a tick earlier."""
    return time.time()


# -- what was acknowledged ---------------------------------------------------------------------------------


class CommitLedger:
    """Offsets whose commit the master has acknowledged, over all its starts."""

    def __init__(self) -> None:
        self._at_start: dict[Queue, int] = {}
        self._since: list[tuple[float, Queue, int]] = []
        self._writes: list[float] = []

    def acknowledge(self, queue: Queue, offset: int) -> None:
        """The master has answered a commit."""
        self._since.append((now_s(), queue, offset))

    def note_write(self, written_s: float) -> None:
        """The file of offsets was written at this time; may be called again for the same write."""
        if not self._writes or self._writes[-1] != written_s:
            self._writes.append(written_s)

    def acknowledged_before(self, moment_s: float) -> dict[Queue, int]:
        """What a master holds that was not restarted since: what it started with, and has acknowledged."""
        held = dict(self._at_start)
        held.update((queue, offset) for at_s, queue, offset in self._since if at_s < moment_s)
        return held

    def written(self, last_write_s: float) -> dict[Queue, int]:
        """What must be in the file whose last write was at that time."""
        earlier = [written_s for written_s in self._writes if written_s < last_write_s]
        return self.acknowledged_before(max(earlier, default=float("-inf")))

    def surely_written(self) -> dict[Queue, int]:
        """What a power cut now leaves: all writes that were seen but the last one are surely on the disk."""
        return self.written(self._writes[-2]) if len(self._writes) > 1 else dict(self._at_start)

    def restart(self, held: Offsets) -> None:
        """The master has ended, and begins with what its disk holds."""
        self._at_start = dict(held)
        self._since.clear()
        self._writes.clear()


# -- what passes a link ------------------------------------------------------------------------------------


@frozen
class Copy:
    """An answer with consumer offsets, as it passed the link of a slave."""

    asked_s: float
    """When the slave's request passed."""
    offsets: dict[Queue, int]


class CopyWatch:
    """Reads the consumer offsets that pass the link of one slave."""

    def __init__(self, on_copy: Callable[[Copy], None]) -> None:
        """`on_copy` is called before the slave receives it."""
        self._on_copy = on_copy
        self.copies: list[Copy] = []
        """All of them, in their order."""

    def connection(self) -> Callable[[Direction, bytes], None]:
        """What reads the bytes of one connection."""
        decoders = {way: FrameDecoder() for way in Direction}
        asked_s: dict[int, float] = {}

        def read(way: Direction, data: bytes) -> None:
            decoders[way].feed(data)
            while (command := decoders[way].next_command()) is not None:
                if way is Direction.TO_TARGET:
                    if command.code == RequestCode.GET_ALL_CONSUMER_OFFSET:
                        asked_s[command.opaque] = now_s()
                elif command.opaque in asked_s and command.code == ResponseCode.SUCCESS:
                    document = parse_pretty(bytes(command.body).decode())
                    copy = Copy(asked_s.pop(command.opaque), offsets_in(document))
                    self.copies.append(copy)
                    self._on_copy(copy)

        return read


def last_taken(copies: Sequence[Copy], succeeded_s: float) -> Copy | None:
    """The last copy that a slave has surely taken that reports a success at that time or a moment later.

    The request of the copy after it passed a whole period later than the success.
    """
    return next((copy for copy in reversed(copies) if copy.asked_s < succeeded_s + COPY_PERIOD_S / 2), None)


# -- what nodes answer -------------------------------------------------------------------------------------


def offsets_in(document: Any) -> dict[Queue, int]:
    """The offsets of `GROUP` in a table of consumer offsets."""
    table = document.get("offsetTable", {}) if isinstance(document, Mapping) else {}
    return {
        (topic, int(queue_id)): offset
        for key, queues in table.items()
        for topic, separator, group in [key.rpartition("@")]
        if separator and group == GROUP
        for queue_id, offset in queues.items()
    }


async def fetch_tables(address: str) -> dict[str, Any]:
    """What a node answers to slaves; empty if it does not answer."""
    tables: dict[str, Any] = {}
    try:
        async with open_client(address) as client:
            for code in (*COPIED_WHOLE, RequestCode.GET_ALL_CONSUMER_OFFSET):
                answer = await client.request(request(code), timeout_s=ANSWERED_WITHIN_S)
                tables[code.name] = parse_pretty(bytes(answer.body).decode()) if answer.code == 0 else answer
    except PeerError:
        return {}
    return tables


async def fetch_last_success(address: str) -> tuple[float, dict[Queue, int]] | None:
    """When a slave has last copied consumer offsets, at the earliest, and which it has now.

    None if it has not yet, or does not answer: its connections may be used up.
    """
    try:
        async with open_client(address) as client:
            asked_s = now_s()
            status = await fetch_status(client, timeout_s=ANSWERED_WITHIN_S)
            offsets = request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            answer = await client.request(offsets, timeout_s=ANSWERED_WITHIN_S)
    except (PeerError, RemoteProtocolError):
        return None
    copied = None if status.metadata is None else status.metadata.tables.get("consumerOffsets")
    if copied is None or copied.age_ms is None or answer.code != ResponseCode.SUCCESS:
        return None
    succeeded_s = asked_s - copied.age_ms / 1000 - _AGE_ROUNDING_S
    return succeeded_s, offsets_in(parse_pretty(bytes(answer.body).decode()))


# -- what must hold ----------------------------------------------------------------------------------------


def check_offsets(held: Offsets, wanted: Offsets, *, where: str) -> list[str]:
    """No offset is before the one that must be there."""
    return [
        f"{where}: {topic}, queue {queue_id} is at {held.get((topic, queue_id))}, committed was {offset}"
        for (topic, queue_id), offset in sorted(wanted.items())
        if held.get((topic, queue_id), -1) < offset
    ]


def metadata_differences(
    master: Mapping[str, Any], slave: Mapping[str, Any], committed: Offsets
) -> list[str]:
    """Where tables of a slave are not those of its master, or the offsets of either not those committed."""
    found = [
        f"{name}: the master has {_short(master.get(name))}, the slave {_short(slave.get(name))}"
        for name in (code.name for code in COPIED_WHOLE)
        if master.get(name) != slave.get(name) or name not in master
    ]
    for who, tables in (("the master", master), ("the slave", slave)):
        held = offsets_in(tables.get(RequestCode.GET_ALL_CONSUMER_OFFSET.name))
        if held != committed:
            found.append(f"offsets of {GROUP}: {who} has {_short(held)}, committed are {_short(committed)}")
    return found


def read_file(store: Path, name: str) -> Any:
    """The document of a store's metadata file as a node would read it; None if there is none.

    Raises StoreError if it is damaged.
    """
    return read_metadata(store / "config" / name, lambda document: document)


def read_offsets(store: Path) -> dict[Queue, int]:
    """The offsets of `GROUP` on the disk. Raises StoreError."""
    return offsets_in(read_file(store, OFFSETS_FILE))


def last_write_s(store: Path) -> float | None:
    """When the file of offsets was last written, on the clock of `now_s`; None if it was not."""
    try:
        return (store / "config" / OFFSETS_FILE).stat().st_mtime
    except FileNotFoundError:
        return None


def file_differences(stores: Sequence[Path], committed: Offsets) -> list[str]:
    """Where the files of the slaves' stores are not those of the first one, or offsets not those committed.

    Raises StoreError.
    """
    first, *others = stores
    found = []
    for name in COPIED_WHOLE.values():
        wanted = read_file(first, name)
        for store in others:
            held = read_file(store, name)
            if held != wanted:
                found.append(f"{name}: {first.name} has {_short(wanted)}, {store.name} {_short(held)}")
    for store in stores:
        held = read_offsets(store)
        if held != committed:
            found.append(
                f"{OFFSETS_FILE}: {store.name} has {_short(held)}, committed are {_short(committed)}"
            )
    return found


def _short(value: object) -> str:
    return str(value)[:300]
