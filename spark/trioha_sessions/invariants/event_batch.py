"""The records of one part of a session as all rules need them: grouped and sorted once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Direction, Kind
from trioha.recording.reader import Session
from trioha_sessions.snapshot import keyframes_to_events
from trioha_sessions.state_arrays import Array, Bools, Ints, shows_request

HEARTBEAT_RECEIVED: Final = 128
"""Code of a HEARTBEAT that was received; every other code is the record's kind."""
_RADIX_KEYS: Final = 1 << 16
"""Keys within so many are sorted in linear time."""


@frozen
class SessionSettings:
    """Properties of a session that rules need beside its records."""

    is_slave: bool
    values: Mapping[str, object]
    """HA settings by their broker.conf keys."""

    @classmethod
    def of(cls, session: Session) -> SessionSettings:
        """The settings of `session`."""
        identity = session.identity
        return cls(session.is_slave, identity.settings)

    @property
    def has_roles(self) -> bool:
        """Whether controllers gave the node its role."""
        return self.values.get("enableControllerMode") is True

    @property
    def waits_for_set(self) -> bool:
        """Whether puts wait for the sync-state set of controllers, which may become smaller meanwhile."""
        return self.has_roles and self.values.get("allAckInSyncStateSet") is True

    def milliseconds(self, key: str) -> int | None:
        """A setting in ms; None if the session does not have it."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


class Columns:
    """Some rows of records, or of other columns, by column.

    A column is gathered on its first use into contiguous memory: bytes as they are, all other numbers as
    int64.
    """

    def __init__(self, source: Array | Columns, places: Ints | None = None) -> None:
        """`places`: which rows of `source`; all of them by default."""
        self._source = source
        self._places = places
        self._known: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        known = self._known.get(name)
        if known is None:
            column = self._source[name]
            if self._places is not None:
                column = column[self._places]
            dtype = np.uint8 if column.dtype.itemsize == 1 else np.int64
            self._known[name] = known = np.ascontiguousarray(column, dtype)
        return known


class EventStream(Columns):
    """The rows of `GroupedEvents` that are of some kinds, in their order."""

    def __init__(self, grouped: GroupedEvents, rows: Ints) -> None:
        super().__init__(grouped.columns, rows if grouped.places is None else grouped.places[rows])
        self.rows = rows
        """Rows in the groups; shape (n,)."""
        self._begins = grouped.begins
        self._length = len(grouped.codes)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def places(self) -> Ints:
        """Places in the records of the batch; shape (n,)."""
        assert self._places is not None, "a stream has its rows"
        return self._places

    @cached_property
    def before(self) -> Ints:
        """How many rows of the stream lie before each row of the groups; shape (rows of the groups,)."""
        is_one = np.zeros(self._length, np.bool_)
        is_one[self.rows] = True
        return np.cumsum(is_one) - is_one

    @cached_property
    def bounds(self) -> Ints:
        """Start of each group in the stream, and its end; shape (groups + 1,)."""
        return np.append(np.searchsorted(self.rows, self._begins), len(self.rows))


class GroupedEvents:
    """Records of a batch in groups: those of one key are adjacent, in their order."""

    def __init__(
        self, columns: Columns, codes: NDArray[np.uint8], places: Ints | None, keys: Ints, begins: Ints
    ) -> None:
        self.columns = columns
        """Columns of all records of the batch."""
        self.codes = codes
        """Code of each row; shape (n,)."""
        self.places = places
        """Place of each row in the records of the batch; None if the rows are these records."""
        self.keys = keys
        """Key of each group, ascending; shape (g,)."""
        self.begins = begins
        """First row of each group; shape (g,)."""
        self.ends = np.append(begins, len(codes))[1:]
        """Row after the last one of each group; shape (g,)."""
        self.rows = columns if places is None else Columns(columns, places)
        """The rows by column."""
        self._streams: dict[tuple[int, ...], EventStream] = {}

    def places_of(self, begin: int, end: int) -> Ints:
        """Places in the records of the batch of the rows from `begin` to before `end`."""
        return np.arange(begin, end) if self.places is None else self.places[begin:end]

    def stream(self, kinds: tuple[int, ...]) -> EventStream:
        """The rows of some kinds (codes of an `EventBatch`); computed once."""
        known = self._streams.get(kinds)
        if known is None:
            chosen = np.zeros(len(self.codes), np.bool_)
            for kind in kinds:
                chosen |= self.codes == kind
            self._streams[kinds] = known = EventStream(self, np.flatnonzero(chosen))
        return known


@frozen(eq=False)
class Waits:
    """Places in the records of a batch."""

    ends: Ints
    """WAIT_END records, ascending; shape (n,)."""
    begins: Ints
    """The WAIT_BEGIN of each, -1 if it is not in the part or ended before; shape (n,)."""
    open_: Ints
    """WAIT_BEGIN records without an end; shape (m,)."""


@define(eq=False)
class EventBatch:
    """Records of a part in the order of their seq."""

    raw: Array
    """All of them."""
    settings: SessionSettings
    is_first: bool
    """Whether no records came before, so that KEYFRAMEs count as the events that they repeat."""

    @cached_property
    def _kept(self) -> tuple[Array, Bools | None]:
        is_key = self.raw["kind"] == Kind.KEYFRAME
        if not is_key.any():
            return self.raw, None
        if self.is_first:
            # KEYFRAMEs of STATE and HEARTBEAT add nothing to those of later kinds.
            is_key &= ~np.isin(self.raw["flags"], (Kind.STATE, Kind.HEARTBEAT))
            kept = (self.raw["kind"] != Kind.KEYFRAME) | is_key
            records, is_key = self.raw[kept], is_key[kept]
            records[is_key] = keyframes_to_events(records[is_key])
            return records, is_key
        kept = np.flatnonzero(~is_key)
        if len(kept) and int(kept[-1]) - int(kept[0]) + 1 == len(kept):
            # KEYFRAMEs are at the start of a segment: the records after them need no copy.
            return self.raw[int(kept[0]) : int(kept[-1]) + 1], None
        return self.raw[kept], None

    @property
    def records(self) -> Array:
        """The records without KEYFRAMEs; in the first part KEYFRAMEs become the events that they repeat."""
        return self._kept[0]

    @property
    def repeated(self) -> Bools | None:
        """Which of `records` were KEYFRAMEs, and so are not checked; None if none was."""
        return self._kept[1]

    @cached_property
    def codes(self) -> NDArray[np.uint8]:
        """Kind of each of `records`, or `HEARTBEAT_RECEIVED`."""
        codes: NDArray[np.uint8] = self.columns["kind"].astype(np.uint8)
        beats = np.flatnonzero(codes == Kind.HEARTBEAT)
        codes[beats[self.columns["flags"][beats] != Direction.SENT]] = HEARTBEAT_RECEIVED
        return codes

    @cached_property
    def holes(self) -> Ints:
        """Places in `records` before which records are missing or were dropped; ascending."""
        seq = self.raw["seq"]
        gaps = np.flatnonzero(np.diff(seq) != 1) + 1
        drops = np.flatnonzero(self.raw["kind"] == Kind.DROPPED)
        if not len(gaps) and not len(drops):
            return np.zeros(0, np.int64)
        seqs = np.unique(np.concatenate((seq[gaps], seq[drops])))
        places: Ints = np.searchsorted(self.records["seq"], seqs)
        return places

    @cached_property
    def columns(self) -> Columns:
        """`records` by column."""
        return Columns(self.records)

    @cached_property
    def whole(self) -> GroupedEvents:
        """All records in one group."""
        groups = np.zeros(min(1, len(self.records)), np.int64)
        return GroupedEvents(self.columns, self.codes, None, groups, groups)

    @cached_property
    def connections(self) -> GroupedEvents:
        """The records of connections, by connection."""
        conns = self.columns["conn"]
        lowest = int(conns.min(initial=0))
        if len(conns) and lowest == NO_CONNECTION and int(conns.max()) - lowest < _RADIX_KEYS:
            # The node's own come first.
            counts = np.bincount(conns - lowest)
            places = stable_order(conns)[counts[0] :]
            keys = np.flatnonzero(counts[1:])
            begins = np.cumsum(counts[1:])[keys] - counts[1:][keys]
            return GroupedEvents(self.columns, self.codes[places], places, keys, begins)
        return self._grouped(np.flatnonzero(conns != NO_CONNECTION), "conn")

    @cached_property
    def waits(self) -> GroupedEvents:
        """The records of group-commit waits, by request id."""
        return self._grouped(self.whole.stream((Kind.WAIT_BEGIN, Kind.WAIT_END)).rows, "aux")

    @cached_property
    def wait_pairs(self) -> Waits:
        """The waits with their begins."""
        grouped = self.waits
        assert grouped.places is not None, "waits are sorted"
        places, is_begin = grouped.places, grouped.codes == Kind.WAIT_BEGIN
        is_first = np.zeros(len(places), np.bool_)
        is_first[grouped.begins] = True
        follows = np.zeros(len(places), np.bool_)
        follows[1:] = ~is_first[1:] & is_begin[:-1]
        ended = np.flatnonzero(~is_begin)
        begins = np.where(follows[ended], places[np.maximum(ended - 1, 0)], -1)
        ends = places[ended]
        sequence = stable_order(ends)
        is_open = is_begin.copy()
        is_open[:-1] &= is_first[1:] | is_begin[1:]
        return Waits(ends[sequence], begins[sequence], places[is_open])

    @cached_property
    def requests(self) -> Bools:
        """Which of `records` show a request on their connection; shape (n,)."""
        return shows_request(self.records)

    def _grouped(self, places: Ints, name: str) -> GroupedEvents:
        keys = self.columns[name][places]
        order = stable_order(keys)
        places, keys = places[order], keys[order]
        begins = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1))
        return GroupedEvents(self.columns, self.codes[places], places, keys[begins], begins)

    def grouped(self, key: str | None) -> GroupedEvents:
        """By `conn` (connections), `aux` (waits), or all in one group."""
        if key is None:
            return self.whole
        return self.connections if key == "conn" else self.waits


def stable_order(keys: Ints) -> Ints:
    """The places that sort `keys`, equal ones in their order."""
    if not len(keys):
        return np.zeros(0, np.int64)
    lowest = int(keys.min())
    if int(keys.max()) - lowest < _RADIX_KEYS:
        return np.argsort((keys - lowest).astype(np.uint16), kind="stable")
    return np.argsort(keys, kind="stable")
