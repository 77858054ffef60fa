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
from trioha.recording.standing import as_what_they_stand_for

Array = NDArray[np.void]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HEARD: Final = 128
"""Code of a HEARTBEAT that was received; every other code is the record's kind."""
_RADIX_KEYS: Final = 1 << 16
"""Keys within so many are sorted in linear time."""


@frozen
class Setting:
    """What rules know of the session, apart from its records."""

    is_slave: bool
    values: Mapping[str, object]
    """HA settings by their broker.conf keys."""
    is_sampled: bool = False
    """Whether a monitor recorded it: of most events it has none."""

    @classmethod
    def of(cls, session: Session) -> Setting:
        """That of `session`."""
        identity = session.identity
        return cls(session.is_slave, identity.settings, identity.source != SOURCE_NODE)

    def milliseconds(self, key: str) -> int | None:
        """A setting in ms; None if the session does not say it."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


class Rows:
    """Some rows of an array, by column: `rows["offset"]` is gathered when it is asked for, as int64."""

    def __init__(self, records: Array, places: NDArray[Any] | slice = slice(None)) -> None:
        self._records = records
        self._places = places

    def __getitem__(self, name: str) -> Ints:
        column: Ints = self._records[name][self._places].astype(np.int64)
        return column


@define(eq=False)
class Scene:
    """Records of a part in the order of their seq."""

    raw: Array
    """All of them."""
    setting: Setting
    cold: bool
    """Whether nothing came before, so that KEYFRAMEs tell where everything stands."""
    found: dict[type, object] = field(factory=dict)
    """What was worked out of it for all rules, by its type."""

    @cached_property
    def _kept(self) -> tuple[Array, Bools | None]:
        is_key = self.raw["kind"] == Kind.KEYFRAME
        if not is_key.any():
            return self.raw, None
        if self.cold:
            # STATE and HEARTBEAT say nothing that a later kind's KEYFRAME would not say better.
            is_key &= ~np.isin(self.raw["flags"], (Kind.STATE, Kind.HEARTBEAT))
            kept = (self.raw["kind"] != Kind.KEYFRAME) | is_key
            records, is_key = self.raw[kept], is_key[kept]
            records[is_key] = as_what_they_stand_for(records[is_key])
            return records, is_key
        kept = np.flatnonzero(~is_key)
        if len(kept) and int(kept[-1]) - int(kept[0]) + 1 == len(kept):
            # They stand at the begin of a segment: what follows need not be copied.
            return self.raw[int(kept[0]) : int(kept[-1]) + 1], None
        return self.raw[kept], None

    @property
    def records(self) -> Array:
        """The records without KEYFRAMEs; of a cold part these are what they stand for."""
        return self._kept[0]

    @property
    def repeated(self) -> Bools | None:
        """Which of `records` were KEYFRAMEs: told, but not judged. None if none was."""
        return self._kept[1]

    @cached_property
    def codes(self) -> NDArray[np.uint8]:
        """Kind of each of `records`, or `HEARD`."""
        codes = np.array(self.records["kind"])
        beats = np.flatnonzero(codes == Kind.HEARTBEAT)
        codes[beats[self.records["flags"][beats] != Direction.SENT]] = HEARD
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
    def by_connection(self) -> tuple[Ints, Ints, NDArray[np.uint8]]:
        """Places of the records of connections, by connection and then in their order; and the connection
        and code of each."""
        conns = self.records["conn"]
        places = np.flatnonzero(conns != NO_CONNECTION)
        conns = conns[places].astype(np.int64)
        order = stable_order(conns)
        places = places[order]
        return places, conns[order], self.codes[places]


def stable_order(keys: Ints) -> Ints:
    """The places that sort `keys`, equal ones in their order."""
    if not len(keys):
        return np.zeros(0, np.int64)
    lowest = int(keys.min())
    if int(keys.max()) - lowest < _RADIX_KEYS:
        return np.argsort((keys - lowest).astype(np.uint16), kind="stable")
    return np.argsort(keys, kind="stable")
