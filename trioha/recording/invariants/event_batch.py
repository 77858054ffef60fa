"""The records of one part of a session, as rules look at them: sorted once, for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Direction, Kind
from trioha.recording.layout import SOURCE_NODE
from trioha.recording.reader import Session
from trioha.recording.snapshot import keyframes_to_events
from trioha.recording.state_arrays import Array, Bools, Ints

HEARTBEAT_RECEIVED: Final = 128
"""Code of a HEARTBEAT that was received; every other code is the record's kind."""
_RADIX_KEYS: Final = 1 << 16
"""Keys within so many are sorted in linear time."""


@frozen
class SessionSettings:
    """What rules know of the session, apart from its records."""

    is_slave: bool
    values: Mapping[str, object]
    """HA settings by their broker.conf keys."""
    is_sampled: bool = False
    """Whether a monitor recorded it: of most events it has none."""

    @classmethod
    def of(cls, session: Session) -> SessionSettings:
        """That of `session`."""
        identity = session.identity
        return cls(session.is_slave, identity.settings, identity.source != SOURCE_NODE)

    def milliseconds(self, key: str) -> int | None:
        """A settings in ms; None if the session does not say it."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


class Columns:
    """Some rows of records, or of other rows, by column.

    A column is gathered when it is first asked for, once, into one piece of memory: bytes as they are, all
    other numbers as int64.
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
    """The rows of a track that are of some kinds, in their order."""

    def __init__(self, grouped: GroupedEvents, rows: Ints) -> None:
        super().__init__(grouped.columns, rows if grouped.places is None else grouped.places[rows])
        self.rows = rows
        """Which rows of the track; shape (n,)."""
        self._begins = grouped.begins
        self._length = len(grouped.codes)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def places(self) -> Ints:
        """Places in the records of the scene; shape (n,)."""
        assert self._places is not None, "a stream has chosen its rows"
        return self._places

    @cached_property
    def before(self) -> Ints:
        """Of each row of the track, how many of these lie before it; shape (rows of the track,)."""
        is_one = np.zeros(self._length, np.bool_)
        is_one[self.rows] = True
        return np.cumsum(is_one) - is_one

    @cached_property
    def bounds(self) -> Ints:
        """Where each group of the track begins here, and the end; shape (groups + 1,)."""
        return np.append(np.searchsorted(self.rows, self._begins), len(self.rows))


class GroupedEvents:
    """Records of a scene in groups: those of one key stand together, in their order."""

    def __init__(
        self, columns: Columns, codes: NDArray[np.uint8], places: Ints | None, keys: Ints, begins: Ints
    ) -> None:
        self.columns = columns
        """Of all records of the scene."""
        self.codes = codes
        """Code of each row; shape (n,)."""
        self.places = places
        """Place of each row in the records of the scene; None if the rows are all of them as they are."""
        self.keys = keys
        """Key of each group, ascending; shape (g,)."""
        self.begins = begins
        """First row of each group; shape (g,)."""
        self.ends = np.append(begins, len(codes))[1:]
        """Row behind the last one of each group; shape (g,)."""
        self.rows = columns if places is None else Columns(columns, places)
        """The rows by column."""
        self._streams: dict[tuple[int, ...], EventStream] = {}

    def places_of(self, begin: int, end: int) -> Ints:
        """Places in the records of the scene of the rows from `begin` to before `end`."""
        return np.arange(begin, end) if self.places is None else self.places[begin:end]

    def stream(self, kinds: tuple[int, ...]) -> EventStream:
        """The rows of some kinds (codes of a `EventBatch`); found once."""
        known = self._streams.get(kinds)
        if known is None:
            chosen = np.zeros(len(self.codes), np.bool_)
            for kind in kinds:
                chosen |= self.codes == kind
            self._streams[kinds] = known = EventStream(self, np.flatnonzero(chosen))
        return known


@define(eq=False)
class EventBatch:
    """Records of a part in the order of their seq."""

    raw: Array
    """All of them."""
    settings: SessionSettings
    is_first: bool
    """Whether nothing came before, so that KEYFRAMEs tell where everything stands."""
    found: dict[type, object] = field(factory=dict)
    """What was worked out of it for all rules, by its type."""

    @cached_property
    def _kept(self) -> tuple[Array, Bools | None]:
        is_key = self.raw["kind"] == Kind.KEYFRAME
        if not is_key.any():
            return self.raw, None
        if self.is_first:
            # STATE and HEARTBEAT say nothing that a later kind's KEYFRAME would not say better.
            is_key &= ~np.isin(self.raw["flags"], (Kind.STATE, Kind.HEARTBEAT))
            kept = (self.raw["kind"] != Kind.KEYFRAME) | is_key
            records, is_key = self.raw[kept], is_key[kept]
            records[is_key] = keyframes_to_events(records[is_key])
            return records, is_key
        kept = np.flatnonzero(~is_key)
        if len(kept) and int(kept[-1]) - int(kept[0]) + 1 == len(kept):
            # They stand at the begin of a segment: what follows need not be copied.
            return self.raw[int(kept[0]) : int(kept[-1]) + 1], None
        return self.raw[kept], None

    @property
    def records(self) -> Array:
        """The records without KEYFRAMEs; of a is_first part these are what they stand for."""
        return self._kept[0]

    @property
    def repeated(self) -> Bools | None:
        """Which of `records` were KEYFRAMEs: told, but not judged. None if none was."""
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
        """Places in `records` at which records are missing before, or were dropped; ascending."""
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
        return self._track(np.flatnonzero(conns != NO_CONNECTION), "conn")

    @cached_property
    def waits(self) -> GroupedEvents:
        """The records of group-commit waits, by request id."""
        return self._track(self.whole.stream((Kind.WAIT_BEGIN, Kind.WAIT_END)).rows, "aux")

    def _track(self, places: Ints, name: str) -> GroupedEvents:
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
