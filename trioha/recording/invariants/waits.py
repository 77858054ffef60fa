"""Group-commit waits of a part: pairs of WAIT_BEGIN and WAIT_END."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from trioha.recording.events import Kind
from trioha.recording.invariants.event_batch import EventBatch, stable_order
from trioha.recording.state_arrays import Ints


@frozen(eq=False)
class Waits:
    """Places in the records of a batch."""

    ends: Ints
    """WAIT_END records, ascending; shape (n,)."""
    begins: Ints
    """The WAIT_BEGIN of each, -1 if it is not in the part or ended before; shape (n,)."""
    open_: Ints
    """WAIT_BEGIN records without an end; shape (m,)."""


def pair_waits(batch: EventBatch) -> Waits:
    """The waits of a part; computed once for each batch."""
    known = batch.found.get(Waits)
    if not isinstance(known, Waits):
        batch.found[Waits] = known = _pair_waits(batch)
    return known


def _pair_waits(batch: EventBatch) -> Waits:
    grouped = batch.waits
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
