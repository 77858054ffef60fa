"""The registry of invariants: properties that every session has, also under faults.

An invariant has a name, a sentence that states it, a severity, and a rule. `CRITICAL` (`error` in documents):
this program, or the one that wrote the session, is wrong. `WARNING`: the machine disturbed the node (a disk
too slow for the recording, a process that was suspended), and readers of the figures should know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
from attrs import field, frozen

from trioha.recording.events import CloseReason, Kind, PutStatus
from trioha.recording.state import reached_offset
from trioha.severity import Severity
from trioha_sessions.invariants.adjacent_events import AdjacentEventRule
from trioha_sessions.invariants.copies import CopiesRule
from trioha_sessions.invariants.event_batch import HEARTBEAT_RECEIVED, Columns, EventBatch, SessionSettings
from trioha_sessions.invariants.findings import Findings
from trioha_sessions.invariants.preceding_events import PrecedingEventRule
from trioha_sessions.state_arrays import Bools, reached_offsets

ASK_FOR_ALL: Final = 1
"""First report of an empty slave that wants all history (trioha.haStartFrom=earliest)."""
EARLY_US: Final = 1
"""A waiting time may be rounded down by so much."""
EARLY_NS: Final = 1_000_000
LATE_MS: Final = 1000
"""On a busy node or machine a deadline may be met so late."""


def severity_text(severity: Severity) -> str:
    """The severity of a broken invariant in documents and tables: `error` or `warning`."""
    return "error" if severity is Severity.CRITICAL else severity.word


class Rule(Protocol):
    """Checks parts of a session, and joins its states of parts that follow each other."""

    def check(self, batch: EventBatch) -> Any:
        """Check the records of a part; returns the rule's state."""

    def join(self, earlier: Any, later: Any, settings: SessionSettings, *, gap: bool) -> Any:
        """Join the states of two parts; associative. `gap`: records between them are missing."""

    def finish(self, carry: Any, *, is_whole: bool) -> tuple[Findings, int]:
        """Violations, and how many records were checked; `is_whole`: from the session's start on."""


@frozen
class Invariant:
    """A property of every session."""

    name: str
    sentence: str
    severity: Severity
    rule: Rule
    says: Callable[[np.void, np.void, SessionSettings], str]
    """A violation as a sentence, from the record that breaks it and the one that it was compared with."""
    roles: frozenset[str] = field(default=frozenset({"master", "slave"}))
    needs: tuple[str, ...] = ()
    """Settings (ms) that it needs."""
    by_set: bool | None = None
    """True if it is of masters whose puts wait for the sync-state set only, False if it is not of those."""

    def __reduce__(self) -> tuple[Callable[[str], Invariant], tuple[str]]:
        """Pickled by its name: results of sessions travel between processes."""
        return invariant_named, (self.name,)

    def applies_to(self, settings: SessionSettings) -> bool:
        """Whether it can be checked in a session with these settings."""
        if self.by_set is not None and self.by_set is not settings.waits_for_set:
            return False
        role = "slave" if settings.is_slave else "master"
        return role in self.roles and all(settings.milliseconds(key) is not None for key in self.needs)


_MASTER: Final = frozenset({"master"})
_SLAVE: Final = frozenset({"slave"})
_OF_CONNECTION: Final = (
    *(Kind.REQUESTED, Kind.TRANSFER, Kind.HEARTBEAT, HEARTBEAT_RECEIVED, Kind.ACK, Kind.REFUSED, Kind.CLOSED),
    *(Kind.RECEIVED, Kind.REPORTED),
)


def _ms(settings: SessionSettings, key: str) -> int:
    value = settings.milliseconds(key)
    assert value is not None, "an invariant is checked only if its settings are known"
    return value


def _reached(record: np.void) -> int:
    return reached_offset(int(record["kind"]), offset=int(record["offset"]), size=int(record["size"]))


def _back(new: Columns, old: Columns, _settings: SessionSettings) -> Bools:
    went_back: Bools = new["offset"] < old["offset"]
    return went_back


def _says_back(what: str) -> Callable[[np.void, np.void, SessionSettings], str]:
    def says(new: np.void, old: np.void, _settings: SessionSettings) -> str:
        return f"{what} {new['offset']} after {old['offset']}"

    return says


def _is_early(new: Columns, _old: Columns, settings: SessionSettings) -> Bools:
    limit_ms = np.full(256, -1, np.int64)
    if not settings.has_roles:
        # A master that loses its role, or too many of its set, ends waits for slaves at once.
        limit_ms[PutStatus.FLUSH_SLAVE_TIMEOUT] = _ms(settings, "slaveTimeout")
    limit_ms[PutStatus.FLUSH_DISK_TIMEOUT] = _ms(settings, "syncFlushTimeout")
    early: Bools = new["size"] + EARLY_US < limit_ms[new["flags"]] * 1000
    return early


def _says_early(new: np.void, _old: np.void, settings: SessionSettings) -> str:
    status = PutStatus(int(new["flags"]))
    key = "slaveTimeout" if status is PutStatus.FLUSH_SLAVE_TIMEOUT else "syncFlushTimeout"
    waited_ms = new["size"] / 1000
    return f"{status.name} of request {new['aux']} after {waited_ms:.3f} ms, {key} is {_ms(settings, key)} ms"


def _wait_limit_ms(settings: SessionSettings) -> int:
    return max(_ms(settings, "slaveTimeout"), _ms(settings, "syncFlushTimeout"))


def _closed_early(new: Columns, old: Columns, settings: SessionSettings) -> Bools:
    interval_ns = _ms(settings, "haHousekeepingInterval") * 1_000_000
    # A peer that reports but receives nothing is closed too: it has not acknowledged everything.
    is_silence = (new["flags"] == CloseReason.HOUSEKEEPING) & (new["offset"] == new["aux"])
    early: Bools = is_silence & (new["ts_ns"] - old["ts_ns"] + EARLY_NS < interval_ns)
    return early


def _silent_too_long(new: Columns, old: Columns, settings: SessionSettings) -> Bools:
    limit_ns = (_ms(settings, "haHousekeepingInterval") + LATE_MS) * 1_000_000
    late: Bools = new["ts_ns"] - old["ts_ns"] > limit_ns
    return late


def _seconds(new: np.void, old: np.void) -> str:
    return f"{(int(new['ts_ns']) - int(old['ts_ns'])) / 1e9:.3f} s"


def _not_one_after(new: Columns, old: Columns, _settings: SessionSettings) -> Bools:
    # A slave that requests from 0 gets the master's last file, which starts anywhere.
    from_anywhere = (old["kind"] == Kind.REQUESTED) & (old["offset"] == 0)
    differs: Bools = (new["offset"] != reached_offsets(old)) & ~from_anywhere
    return differs


INVARIANTS: Final = (
    Invariant(
        "no-record-missing",
        "No record is missing: one DROPPED record stands for dropped events.",
        Severity.CRITICAL,
        AdjacentEventRule("seq", lambda difference: difference != 1),
        lambda new, old, _: f"record {new['seq']} comes after {old['seq']}",
    ),
    Invariant(
        "nothing-dropped",
        "No event was dropped while recording.",
        Severity.WARNING,
        PrecedingEventRule(lambda new, _old, _: new["aux"] >= 0, checks=(Kind.DROPPED,)),
        lambda new, _old, _: f"{new['aux']} events were dropped: the disk was too slow for the recording",
    ),
    Invariant(
        "clock-goes-forward",
        "No record is older than the one before it.",
        Severity.CRITICAL,
        AdjacentEventRule("ts_ns", lambda difference: difference < 0),
        lambda new, old, _: f"the clock went back by {int(old['ts_ns']) - int(new['ts_ns'])} ns",
    ),
    Invariant(
        "ack-within-sent",
        "No slave acknowledges more than it was sent on its connection, or requested from.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda new, old, _: new["offset"] > reached_offsets(old),
            checks=(Kind.ACK,),
            sets=(Kind.REQUESTED, Kind.TRANSFER, Kind.HEARTBEAT),
            key="conn",
            needs_origin=True,
        ),
        lambda new, old, _: (
            f"ack {new['offset']}, nothing was sent"
            if new["seq"] == old["seq"]
            else f"ack {new['offset']}, sent was {_reached(old)}"
        ),
        _MASTER,
    ),
    Invariant(
        "ack-within-log",
        "No ack goes beyond the master's log.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda new, _old, _: new["offset"] > np.maximum(new["aux"], ASK_FOR_ALL), checks=(Kind.ACK,)
        ),
        lambda new, _old, _: f"ack {new['offset']}, the master's log ends at {new['aux']}",
        _MASTER,
    ),
    Invariant(
        "acks-go-forward",
        "No ack of a connection is below the one before it.",
        Severity.CRITICAL,
        PrecedingEventRule(_back, checks=(Kind.ACK,), sets=(Kind.ACK,), key="conn", outlives_holes=True),
        _says_back("ack"),
        _MASTER,
    ),
    Invariant(
        "transfers-contiguous",
        "Each frame of a connection starts where the one before it ended.",
        Severity.CRITICAL,
        PrecedingEventRule(
            _not_one_after, checks=(Kind.TRANSFER,), sets=(Kind.TRANSFER, Kind.REQUESTED), key="conn"
        ),
        lambda new, old, _: f"a frame begins at {new['offset']}, sent was {_reached(old)}",
        _MASTER,
    ),
    Invariant(
        "transfer-within-log",
        "No frame goes beyond the master's log.",
        Severity.CRITICAL,
        PrecedingEventRule(lambda new, _old, _: reached_offsets(new) > new["aux"], checks=(Kind.TRANSFER,)),
        lambda new, _old, _: f"a frame ends at {_reached(new)}, the master's log at {new['aux']}",
        _MASTER,
    ),
    Invariant(
        "received-contiguous",
        "Each frame that a slave receives starts where the one before it ended.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda new, old, _: new["offset"] != reached_offsets(old),
            checks=(Kind.RECEIVED,),
            sets=(Kind.RECEIVED,),
            key="conn",
        ),
        lambda new, old, _: (
            f"a frame was taken at {new['offset']}, the one before it ended at {_reached(old)}"
        ),
        _SLAVE,
    ),
    Invariant(
        "report-within-log",
        "No slave reports more than its own log holds.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda new, _old, _: new["offset"] > np.maximum(new["aux"], ASK_FOR_ALL), checks=(Kind.REPORTED,)
        ),
        lambda new, _old, _: f"reported {new['offset']}, the own log ends at {new['aux']}",
        _SLAVE,
    ),
    Invariant(
        "reports-go-forward",
        "No report of a connection is below the one before it.",
        Severity.CRITICAL,
        PrecedingEventRule(
            _back, checks=(Kind.REPORTED,), sets=(Kind.REPORTED,), key="conn", outlives_holes=True
        ),
        _says_back("reported"),
        _SLAVE,
    ),
    Invariant(
        "puts-do-not-overlap",
        "Each message is stored after the one before it.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda new, old, _: new["offset"] - new["size"] < old["offset"],
            checks=(Kind.PUT,),
            sets=(Kind.PUT,),
            outlives_holes=True,
        ),
        lambda new, old, _: (
            f"a message was stored at {int(new['offset']) - int(new['size'])}, "
            f"the one before it ended at {old['offset']}"
        ),
        _MASTER,
    ),
    Invariant(
        "flushed-goes-forward",
        "The flushed offset does not go back.",
        Severity.CRITICAL,
        PrecedingEventRule(_back, checks=(Kind.FLUSHED,), sets=(Kind.FLUSHED,), outlives_holes=True),
        _says_back("flushed"),
        # A slave may set its log aside, and begin a new one.
        _MASTER,
    ),
    Invariant(
        "put-ok-has-copies",
        "A put is answered PUT_OK only after as many connections as it needed acknowledged it.",
        Severity.CRITICAL,
        CopiesRule(),
        lambda new, old, _: (
            f"PUT_OK of request {new['aux']} at {new['offset']}, which needed {int(old['size']) - 1} acks "
            "and did not have them"
        ),
        _MASTER,
        # The set may become smaller while a put waits for it.
        by_set=False,
    ),
    Invariant(
        "put-ok-is-confirmed",
        "With allAckInSyncStateSet under controllers, no put that was PUT_OK lies beyond the confirm offset.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda new, old, _: (old["flags"] == PutStatus.PUT_OK) & (new["offset"] < old["offset"]),
            checks=(Kind.CONFIRMED,),
            sets=(Kind.WAIT_END,),
            outlives_holes=True,
        ),
        lambda new, old, _: (
            f"the confirm offset is {new['offset']}, request {old['aux']} was PUT_OK at {old['offset']}"
        ),
        _MASTER,
        by_set=True,
    ),
    Invariant(
        "timeout-after-its-time",
        "A put times out only after slaveTimeout or syncFlushTimeout.",
        Severity.CRITICAL,
        PrecedingEventRule(_is_early, checks=(Kind.WAIT_END,)),
        _says_early,
        _MASTER,
        ("slaveTimeout", "syncFlushTimeout"),
    ),
    Invariant(
        "wait-ends-in-time",
        f"No put waits longer than its timeout and {LATE_MS / 1000:g} s.",
        Severity.WARNING,
        PrecedingEventRule(
            lambda new, _old, settings: new["size"] > (_wait_limit_ms(settings) + LATE_MS) * 1000,
            checks=(Kind.WAIT_END,),
        ),
        lambda new, _old, settings: (
            f"request {new['aux']} waited {new['size'] / 1e6:.3f} s, "
            f"the limit is {_wait_limit_ms(settings)} ms"
        ),
        _MASTER,
        ("slaveTimeout", "syncFlushTimeout"),
    ),
    Invariant(
        "one-end-per-wait",
        "Each wait ends at most once, for the offset with which it began.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda new, old, _: new["offset"] != old["offset"],
            checks=(Kind.WAIT_END,),
            sets=(Kind.WAIT_BEGIN, Kind.WAIT_END),
            key="aux",
            needs_origin=True,
            opens=Kind.WAIT_BEGIN,
        ),
        lambda new, old, _: (
            f"the wait of request {new['aux']} ended, but had not begun, or had ended already"
            if new["seq"] == old["seq"]
            else f"the wait of request {new['aux']} for {old['offset']} ended for {new['offset']}"
        ),
        _MASTER,
    ),
    Invariant(
        "nothing-after-the-end",
        "A connection has no events after its end.",
        Severity.CRITICAL,
        PrecedingEventRule(
            lambda _new, old, _: old["kind"] == Kind.CLOSED,
            checks=_OF_CONNECTION,
            sets=_OF_CONNECTION,
            key="conn",
            outlives_holes=True,
        ),
        lambda new, _old, _: (
            f"{Kind(int(new['kind'])).name} at {new['offset']} on a connection that has ended"
        ),
    ),
    Invariant(
        "housekeeping-not-early",
        "A connection is closed for silence only if nothing was received for haHousekeepingInterval.",
        Severity.CRITICAL,
        PrecedingEventRule(
            _closed_early,
            checks=(Kind.CLOSED,),
            sets=(Kind.STATE, Kind.REQUESTED, Kind.ACK, HEARTBEAT_RECEIVED, Kind.RECEIVED),
            key="conn",
        ),
        lambda new, old, settings: (
            f"closed for silence {_seconds(new, old)} after the last word, "
            f"haHousekeepingInterval is {_ms(settings, 'haHousekeepingInterval')} ms"
        ),
        needs=("haHousekeepingInterval",),
    ),
    Invariant(
        "housekeeping-not-late",
        f"No silent peer is kept longer than haHousekeepingInterval and {LATE_MS / 1000:g} s.",
        Severity.WARNING,
        PrecedingEventRule(
            _silent_too_long,
            checks=(Kind.ACK, HEARTBEAT_RECEIVED, Kind.RECEIVED, Kind.CLOSED),
            sets=(Kind.REQUESTED, Kind.ACK, HEARTBEAT_RECEIVED, Kind.RECEIVED),
            key="conn",
        ),
        lambda new, old, settings: (
            f"nothing was heard for {_seconds(new, old)}, "
            f"haHousekeepingInterval is {_ms(settings, 'haHousekeepingInterval')} ms"
        ),
        needs=("haHousekeepingInterval",),
    ),
)
"""Every invariant, in the order in which they are shown."""


def invariant_named(name: str) -> Invariant:
    """One of `INVARIANTS`."""
    return next(one for one in INVARIANTS if one.name == name)
