"""What a recording shows of its puts: when they came, and how long each of their stages took.

The unit is a **run**: puts that were appended one right after the other, with no frame, ack or end between
them; often it is a single put. The times of a run are those of its last put. A run's stages are one row, and
rows are resampled as a whole, so that what was slow together stays slow together:

| stage | from | to |
|---|---|---|
| send | append of the run | frame with its last byte, for each slave |
| ack | that frame | acknowledgement of the run's last byte, for each slave |
| answer | the copy or the sync that the run waited for last | end of its wait |
| think | end of a run | append of the run that its writers send next (closed loop only) |

A frame that is sent while the one before it is not acknowledged may have to wait for it: `serial`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Kind, PutStatus
from trioha_sessions.state_arrays import Array, Ints, covered_at

Floats = NDArray[np.float64]

ENOUGH: Final = 30
"""Fewest runs that a share, a slope or a row is derived from."""
NO_STATUS: Final = -1
CLOSED_SLOPE_MIN: Final = 0.5
WAITING_PARTS: Final = (0.98, 0.998)
"""Quantiles of the number of waiting puts: without bursts, and with them."""
USUAL_PART: Final = 0.9
"""Quantile of the waits that are looked at to tell a closed loop from an open one."""
BURST_MAX: Final = 1.25
"""Bursts of a closed loop are at most this many times its number of writers."""


class Producers(StrEnum):
    """How puts arrive."""

    CLOSED = "closed"
    """Writers send their next puts some time after the end of their last ones."""
    OPEN = "open"
    """Puts arrive independently of the ends of others."""
    AUTO = "auto"
    """Detected in the recording."""


RUN_GAP_S_MAX: Final = 0.0005
"""Between two puts of a run."""
_TIMES: Final = ("append_s", "end_s", "sent_s", "acked_s", "flushed_s")
_OTHERS: Final = ("append_span_s", "end_span_s", "puts", "bytes", "end_offset", "status", "copies", "turn")
"""Fields of `Runs` with a row for each run."""


@frozen(eq=False)
class Runs:
    """The runs of a part of a master's recording. Times are s, of the part's first put; shape (runs,)."""

    append_s: Floats
    append_span_s: Floats
    """From the append of the first put to that of the last one, `append_s`."""
    puts: Ints
    bytes: Ints
    end_offset: Ints
    end_s: Floats
    """End of the wait; that of the append if the run had none, nan if it is not in this part."""
    end_span_s: Floats
    """From the end of the first put to that of the last one, `end_s`; nan if one is not known."""
    status: Ints
    """`PutStatus`; NO_STATUS if the end is not in this part."""
    copies: Ints
    """Slaves that the run waited for."""
    turn: Ints
    """Frames, acks and ends that were recorded before it."""
    sent_s: Floats
    """Frame with the run's last byte; shape (runs, connections), nan where the connection was not there at
    the append, or got none in this part."""
    acked_s: Floats
    """Likewise its acknowledgement."""
    flushed_s: Floats
    """When the master had synced it."""
    sync_s: Floats
    """Durations of the syncs; any number of them."""
    sync_bytes: Ints
    """What each sync but the first one put on disk."""

    def cut(self, count: int) -> list[Runs]:
        """The runs in `count` parts of the same length; there are as many runs or more."""
        bounds = np.linspace(0, len(self.puts), count + 1).astype(int)
        syncs = zip(np.array_split(self.sync_s, count), np.array_split(self.sync_bytes, count), strict=True)
        return [
            Runs(
                **{name: getattr(self, name)[first:end] - self.append_s[first] for name in _TIMES},
                **{name: getattr(self, name)[first:end] for name in _OTHERS},
                sync_s=sync_s,
                sync_bytes=sync_bytes,
            )
            for first, end, (sync_s, sync_bytes) in zip(bounds[:-1], bounds[1:], syncs, strict=True)
        ]


@frozen(eq=False)
class Stages:
    """The rows of a part, and its producers. Times are s."""

    send_s: Floats
    """Shape (rows, slaves), as `ack_s`."""
    ack_s: Floats
    answer_s: Floats
    """Shape (rows,)."""
    append_gap_s: float
    """Between the appends of a run's puts."""
    end_gap_s: float
    """Between their ends."""
    think_s: Floats
    """Empty without a closed loop."""
    sync_s: Floats
    """Syncs of one disk, that with the smallest ones."""
    sync_bytes: int
    """Median size of those."""

    @property
    def slaves(self) -> int:
        """How many slaves there are times of."""
        return int(self.ack_s.shape[1])


def puts_of(records: Array) -> Runs:
    """The puts of `records` of a master's session, in the order of their seq, as runs of one put each."""
    kind = records["kind"]
    is_put = kind == Kind.PUT
    puts = records[is_put]
    zero_ns = int(puts["ts_ns"][0]) if len(puts) else 0

    def seconds(some: Array) -> Floats:
        found: Floats = (some["ts_ns"].astype(np.int64) - zero_ns) / 1e9
        return found

    append_s, end_offset = seconds(puts), puts["offset"].astype(np.int64)
    request = puts["aux"].astype(np.int64)
    begins, ends = records[kind == Kind.WAIT_BEGIN], records[kind == Kind.WAIT_END]
    began, at_begin = _places(request, begins["aux"].astype(np.int64))
    ended, at_end = _places(request, ends["aux"].astype(np.int64))
    copies = np.zeros(len(puts), np.int64)
    copies[began] = np.maximum(begins["size"][at_begin].astype(np.int64) - 1, 0)
    end_s, status = np.full(len(puts), np.nan), np.full(len(puts), NO_STATUS)
    end_s[ended], status[ended] = seconds(ends)[at_end], ends["flags"][at_end]
    # A put without a wait was answered at once.
    none = np.ones(len(puts), np.bool_)
    none[began] = none[ended] = False
    end_s[none], status[none] = append_s[none], int(PutStatus.PUT_OK)
    frames = records[kind == Kind.TRANSFER]
    acks = records[(kind == Kind.ACK) & (records["conn"] != NO_CONNECTION)]
    syncs = records[kind == Kind.FLUSHED]

    def reached(some: Array, offsets: Ints) -> Floats:
        return covered_at(seconds(some), offsets, end_offset, never=np.nan)

    conns = np.unique(acks["conn"])
    sent_s, acked_s = np.full((2, len(puts), len(conns)), np.nan)
    for column, conn in enumerate(conns):
        there = append_s >= seconds(records[np.argmax(records["conn"] == conn)])
        sent, acked = frames[frames["conn"] == conn], acks[acks["conn"] == conn]
        sent_ends = sent["offset"].astype(np.int64) + sent["size"]
        sent_s[:, column] = np.where(there, reached(sent, sent_ends), np.nan)
        acked_s[:, column] = np.where(there, reached(acked, acked["offset"].astype(np.int64)), np.nan)
    return Runs(
        append_s=append_s,
        append_span_s=np.zeros(len(puts)),
        puts=np.ones(len(puts), np.int64),
        bytes=puts["size"].astype(np.int64),
        end_offset=end_offset,
        end_s=end_s,
        end_span_s=np.zeros(len(puts)),
        status=status,
        copies=copies,
        turn=np.cumsum(np.isin(kind, (Kind.TRANSFER, Kind.ACK, Kind.WAIT_END)))[is_put],
        sent_s=sent_s,
        acked_s=acked_s,
        flushed_s=reached(syncs, syncs["offset"].astype(np.int64)),
        sync_s=syncs["aux"] / 1e9,
        sync_bytes=np.diff(syncs["offset"].astype(np.int64)),
    )


def merged(puts: Runs) -> Runs:
    """The runs of `puts_of`."""
    is_first = np.ones(len(puts.puts), np.bool_)
    is_first[1:] = (np.diff(puts.turn) > 0) | (np.diff(puts.append_s) > RUN_GAP_S_MAX)
    first = np.flatnonzero(is_first)
    last = np.append(first, len(puts.puts))[1:] - 1
    return evolve(
        evolve(puts, **{name: getattr(puts, name)[last] for name in (*_TIMES, *_OTHERS)}),
        append_span_s=puts.append_s[last] - puts.append_s[first],
        end_span_s=puts.end_s[last] - puts.end_s[first],
        puts=last - first + 1,
        bytes=np.add.reduceat(puts.bytes, first),
    )


def _places(wanted: Ints, found: Ints) -> tuple[Ints, Ints]:
    """Indices of the `wanted` request ids that were `found`, and where. Ids only grow."""
    if not len(found):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    order = np.argsort(found, kind="stable")
    place = order[np.minimum(np.searchsorted(found, wanted, sorter=order), len(found) - 1)]
    known = np.flatnonzero(found[place] == wanted)
    return known, place[known]


def slaves_of(runs: Runs) -> int:
    """How many slaves acknowledged at the same time: of most runs that any acknowledged."""
    counts = np.count_nonzero(~np.isnan(runs.acked_s), axis=1)
    counts = counts[counts > 0]
    return int(np.bincount(counts).argmax()) if len(counts) else 0


def stages_of(
    runs: Runs,
    *,
    slaves: int,
    is_sync_flush: bool,
    writers: int,
    slave_syncs: Sequence[tuple[Floats, Ints]] = (),
) -> Stages:
    """The stages of a part, with rows of the runs that so many `slaves` acknowledged.

    `is_sync_flush`: whether puts waited for the master's disk. `writers`: of a closed loop, 0 for an open
    one. `slave_syncs`: durations and sizes of the syncs of each slave whose session is there.
    """
    send_s, ack_s = runs.sent_s - runs.append_s[:, None], runs.acked_s - runs.sent_s
    known = ~np.isnan(send_s) & ~np.isnan(ack_s) & ~np.isnan(runs.end_s)[:, None]
    whole = np.count_nonzero(known, axis=1) == slaves
    # The acks that a run waited for: the nth of its slaves in their order.
    in_order = np.sort(np.where(known, runs.acked_s, np.inf), axis=1)
    in_order = np.concatenate([runs.append_s[:, None], in_order], axis=1)
    nth = np.minimum(runs.copies, in_order.shape[1] - 1)
    released_s = np.take_along_axis(in_order, nth[:, None], axis=1)[:, 0]
    if is_sync_flush:
        # A sync is recorded after the ends of the waits for it.
        released_s = np.fmax(released_s, np.fmin(runs.flushed_s, runs.end_s))
    answer_s = np.maximum(runs.end_s - released_s, 0.0)
    whole &= np.isfinite(answer_s)
    # A frame that had to wait for another one shows that one's time, which is drawn with that one.
    alone = whole & ~_is_behind(runs).any(axis=1)
    rows = alone if np.count_nonzero(alone) >= ENOUGH else whole
    shape = (np.count_nonzero(rows), slaves)
    disks = [(runs.sync_s, runs.sync_bytes), *slave_syncs]
    disks = [disk for disk in disks if len(disk[0])]
    # A disk that puts or acks wait for syncs the fewest bytes at a time.
    sync_s, sync_bytes = min(disks, key=_usual_bytes, default=(np.zeros(0), np.zeros(0, np.int64)))
    return Stages(
        send_s=np.maximum(send_s[rows][known[rows]].reshape(shape), 0.0),
        ack_s=ack_s[rows][known[rows]].reshape(shape),
        answer_s=answer_s[rows],
        append_gap_s=_gap_s(runs.append_span_s, runs.puts),
        end_gap_s=_gap_s(runs.end_span_s, runs.puts),
        think_s=_think_s(runs, writers),
        sync_s=sync_s,
        sync_bytes=_usual_bytes((sync_s, sync_bytes)),
    )


def _gap_s(span_s: Floats, puts: Ints) -> float:
    several = (puts > 1) & ~np.isnan(span_s)
    return float(np.median(span_s[several] / (puts[several] - 1))) if several.any() else 0.0


def _usual_bytes(disk: tuple[Floats, Ints]) -> int:
    return int(np.median(disk[1])) if len(disk[1]) else 0


def _is_behind(runs: Runs) -> NDArray[np.bool_]:
    """Which runs were sent while the one before was without an ack; shape (runs, connections)."""
    found = np.zeros(runs.sent_s.shape, np.bool_)
    found[1:] = runs.sent_s[1:] < runs.acked_s[:-1]
    return found


def serial_share(parts: Sequence[Runs]) -> float | None:
    """Share of the time from a frame to its ack for which it holds up the next frame.

    Found with frames that were sent while the one before was without an ack: if a slave handles one at a
    time, acks are as far apart as one alone takes (1), and if it handles them together, they come together
    (0). None if there are too few of them. 0 if there are no others: then their times have it all.
    """
    usual, apart = [np.zeros(0)], [np.zeros(0)]
    for runs in parts:
        is_behind = _is_behind(runs)
        usual.append((runs.acked_s - runs.sent_s)[~is_behind])
        # Runs of one frame are no two frames.
        is_next = is_behind[1:] & (runs.sent_s[1:] > runs.sent_s[:-1])
        apart.append(np.diff(runs.acked_s, axis=0)[is_next])
    usual_s, apart_s = (times[~np.isnan(times)] for times in map(np.concatenate, (usual, apart)))
    if len(apart_s) < ENOUGH:
        return None
    return float(min(1.0, np.median(apart_s) / np.median(usual_s))) if len(usual_s) >= ENOUGH else 0.0


# -- producers -----------------------------------------------------------------------------------------------


def writers_of(parts: Sequence[Runs], wanted: Producers) -> int:
    """Writers in the closed loop of the producers of `puts_of`; 0 if they are an open one.

    In a closed loop of N writers a slow put delays the Nth after it by as much: the slope of that time over
    the time to the end that it depends on is 1 in a closed loop and 0 in an open one. N is the usual maximum
    of waiting puts, which a closed loop reaches if its writers think for less time than they wait.
    """
    waiting = np.concatenate([np.zeros(0, np.int64), *(_waiting(puts) for puts in parts)])
    if wanted is Producers.OPEN or not len(waiting):
        return 0
    usual, most = (int(found) for found in np.quantile(waiting, WAITING_PARTS, method="higher"))
    if wanted is Producers.CLOSED:
        return usual
    cycles = [_cycles(puts, usual) for puts in parts]
    x = np.concatenate([ended - appended for appended, ended, _ in cycles])
    y = np.concatenate([following - appended for appended, _, following in cycles])
    # In a stall of the whole machine everything is late, the puts of an open loop, too.
    is_usual = x <= np.quantile(x, USUAL_PART) if len(x) else np.zeros(0, np.bool_)
    x, y = x[is_usual], y[is_usual]
    # Constant waits show nothing.
    if len(x) < ENOUGH or not np.var(x) or most > BURST_MAX * usual + 1:
        return 0
    return usual if float(np.cov(x, y)[0, 1] / np.var(x)) >= CLOSED_SLOPE_MIN else 0


def _waited(puts: Runs) -> tuple[Floats, Floats]:
    """Appends and sorted ends of the puts that waited."""
    known = puts.end_s > puts.append_s
    return puts.append_s[known], np.sort(puts.end_s[known])


def _waiting(puts: Runs) -> Ints:
    """How many puts waited at each append, with it."""
    appended, ended = _waited(puts)
    return np.arange(1, len(appended) + 1) - np.searchsorted(ended, appended)


def _cycles(puts: Runs, writers: int) -> tuple[Floats, Floats, Floats]:
    """Appends, sorted ends, and the appends that depend on these ends."""
    appended, ended = _waited(puts)
    count = max(0, len(appended) - writers)
    return appended[:count], ended[:count], appended[writers : writers + count]


def _think_s(runs: Runs, writers: int) -> Floats:
    """From the end of the put that the last put of each run depends on to its append."""
    if not writers:
        return np.zeros(0)
    known = ~np.isnan(runs.end_s)
    ends_s = np.sort(np.repeat(runs.end_s[known], runs.puts[known]))
    depends_on = np.cumsum(runs.puts[known]) - 1 - writers
    follows = depends_on >= 0
    return np.maximum(runs.append_s[known][follows] - ends_s[depends_on[follows]], 0.0)
