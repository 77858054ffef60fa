"""The invariants of a run: each check returns its violations, a line for each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from attrs import frozen

from tests.faults.producer import KEY_PROPERTY, Promise
from tests.node_process import run_trioha
from trioha.errors import StoreError
from trioha.recording.events import CloseReason, Kind
from trioha.recording.layout import CLOSED_NOTE
from trioha.recording.reader import Session, find_sessions, open_session
from trioha.severity import Severity
from trioha.store.message_properties import parse_properties
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Record
from trioha.store.time_steps import leads
from trioha_sessions.facts import read_facts
from trioha_sessions.invariants import check_session
from trioha_sessions.records import read_records
from trioha_sessions.segments import read_segments

NAMED_MAX = 5
"""So many of a kind are named, the others counted."""
STORE_NAMES = {"checkpoint", "commitlog", "lock"}
"""What a cleanly closed store must hold."""
_STORE_CLOSED = re.compile(r"store closed .*flushed_offset=(\d+)")
_VERDICTS = {CloseReason.GAP, CloseReason.AHEAD, CloseReason.DIVERGED}
"""What a slave says of a master whose log is another one: never so in these runs."""


@frozen
class Held:
    """Messages that a log holds."""

    keys: dict[int, tuple[str, int]]
    """Key and CRC-32 of the body by physical offset."""
    min_offset: int
    end_offset: int


def held_messages(store: Path) -> Held:
    """Every message of a store's log, in use or not. Raises StoreError at a bad record."""
    log = ReadOnlyCommitLog.open(store)
    keys: dict[int, tuple[str, int]] = {}
    end_offset = log.min_offset
    for record in log.records(log.min_offset):
        end_offset = record.physical_offset + record.total_size
        if isinstance(record, Record):
            key = parse_properties(record.properties_raw).get(KEY_PROPERTY, "")
            keys[record.physical_offset] = (key, crc32(record.body))
    return Held(keys, log.min_offset, end_offset)


def check_promises(
    promises: Sequence[Promise], stores: Sequence[Path], *, copies: int, when: str
) -> list[str]:
    """Every message that was answered PUT_OK is in the logs of at least `copies` of these stores."""
    if copies == 0 or not promises:
        return []
    try:
        held = [held_messages(store) for store in stores]
    except StoreError as error:
        return [f"{when}: {error}"]
    broken = []
    for promise in promises:
        wanted = (promise.key, promise.body_crc32)
        found = sum(log.keys.get(promise.physical_offset) == wanted for log in held)
        if found < copies:
            broken.append(f"{promise.key} at offset {promise.physical_offset} is held by {found}")
    if not broken:
        return []
    ends = ", ".join(
        f"{store.name} ends at {log.end_offset}" for store, log in zip(stores, held, strict=True)
    )
    violation = (
        f"{when}: {len(broken)} of {len(promises)} messages that were answered PUT_OK are on fewer than "
        f"{copies} of {len(stores)} stores: {_some(broken)} ({ends})"
    )
    return [violation]


def check_logs_equal(stores: Sequence[Path], *, end_offset: int) -> list[str]:
    """The first store's log and each other's are valid, the same bytes, and end at `end_offset`."""
    first, *others = stores
    violations = []
    for other in others:
        answer = run_trioha("verify", "--against", first, other)
        if answer.exit_code:
            violations.append(f"trioha verify {other.name}: {' '.join(answer.stderr.split())}")
        if f"to {end_offset}" not in answer.stdout:
            violations.append(f"{other.name} does not end at {end_offset}: {' '.join(answer.stdout.split())}")
    return violations


def check_process_logs(files: Iterable[Path]) -> list[str]:
    """No node crashed, or hid a fault of its own."""
    violations = []
    for file in files:
        lines = file.read_text(errors="replace").splitlines()
        for at, line in enumerate(lines):
            if "Traceback" in line or "ended by a fault of this node" in line:
                near = " | ".join(part.strip() for part in lines[max(0, at - 2) : at + 1])
                violations.append(f"{file.name}: {near}")
    return violations


def check_failed_sync(
    store: Path, *, log_file: Path, promises: Sequence[Promise], recordings: Path | None
) -> list[str]:
    """A node whose disk failed a sync said so last, acknowledged nothing after it, and left `abort`.

    `promises` are those that had to be on its disk; `recordings` are given if its reports are such promises.
    """
    lines = log_file.read_text(errors="replace").splitlines()
    closed = max((at for at, line in enumerate(lines) if _STORE_CLOSED.search(line)), default=-1)
    found = _STORE_CLOSED.search(lines[closed]) if lines else None
    # A line for each sync that failed: those of the log and of the queues may have failed together.
    last = lines[closed + 1 :]
    if found is None or not last or not all(": fsync failed: " in line for line in last):
        return [f"{store.name}: the last words after a failed sync were {lines[-3:]}"]
    # Whichever file's sync it was: the log's may have been in order until then.
    synced_offset = int(found[1])
    violations = []
    if not (store / "abort").exists():
        violations.append(f"{store.name}: no abort after a failed sync")
    beyond = [promise.key for promise in promises if promise.physical_offset >= synced_offset]
    if beyond:
        violations.append(
            f"{store.name}: a sync failed at {synced_offset}, and yet PUT_OK was said of {_some(beyond)}"
        )
    if recordings is not None:
        records = read_records(open_session(find_sessions([recordings])[-1])).array
        reported = records[records["kind"] == Kind.REPORTED]["offset"]
        if len(reported) and int(reported.max()) > synced_offset:
            violations.append(
                f"{store.name}: a sync failed at {synced_offset}, and yet {int(reported.max())} was reported"
            )
    return violations


def check_clean_store(store: Path, *, file_bytes: int, end_offset: int) -> list[str]:
    """A store that was closed cleanly holds what it must, no mark of an unclean end, and no spare file."""
    names = {path.name for path in store.iterdir()}
    violations = [f"{store.name}: {name} is missing" for name in sorted(STORE_NAMES - names)]
    if "abort" in names:
        violations.append(f"{store.name}: abort is there after a clean stop")
    files = sorted(path.name for path in (store / "commitlog").iterdir())
    spare = [
        name for name in files if not name.isdecimal() or int(name) > end_offset - end_offset % file_bytes
    ]
    if spare:
        violations.append(f"{store.name}: files that hold nothing are left in commitlog: {spare}")
    return violations


def check_last_store_time(store: Path) -> list[str]:
    """The last record of a log that was written to just now was not stored in the future. Raises StoreError.

    Whatever a clock said for a while: a small lead is allowed, so that small corrections keep the order.
    """
    log = ReadOnlyCommitLog.open(store)
    stamps = [one.store_timestamp_ms for one in log.records(log.min_offset) if isinstance(one, Record)]
    now_ms = time.time_ns() // 1_000_000
    if not stamps or not leads(stamps[-1], now_ms):
        return []
    return [
        f"{store.name}: the last record was stored {(stamps[-1] - now_ms) / 1000:.0f} s ahead of the clock"
    ]


# -- recordings --------------------------------------------------------------------------------------------


def check_recordings(
    folder: Path,
    *,
    copies_needed: int,
    end_offset: int,
    unclean_ends: int,
    has_impostors: bool = False,
    loses_log: bool = False,
) -> list[str]:
    """As `check_sessions`; besides, the last one ends at `end_offset`.

    No slave took its log for another one than its master's, unless impostors showed it another, or its master
    lost its own.
    """

    def check(session: Session, records: np.ndarray, *, is_last: bool) -> list[str]:
        if not session.is_slave:
            return _check_needs(records, copies_needed=copies_needed) + _check_last_acks(
                records, is_last=is_last, end_offset=end_offset
            )
        if loses_log:
            # Only of the log that it has now.
            connections = records["conn"][records["kind"] == Kind.REPORTED]
            records = records[records["conn"] == connections[-1]] if len(connections) else records
        return _check_last_report(records, is_last=is_last, end_offset=end_offset)

    return check_sessions(
        folder,
        unclean_ends=unclean_ends,
        impossible_ends=() if has_impostors or loses_log else _VERDICTS,
        warnings=("nothing-dropped",),
        check=check,
    )


def check_sessions(
    folder: Path,
    *,
    unclean_ends: int,
    impossible_ends: Collection[CloseReason],
    warnings: Collection[str] = (),
    check: Callable[..., list[str]] = lambda *_, is_last: [],
) -> list[str]:
    """A node's sessions can be read and say only what can be true; all but `unclean_ends` were closed.

    No connection ended for one of `impossible_ends`. Invariants of a replay that are only warnings count if
    they are among `warnings`: a node that was stopped for a while is late. `check` looks at each session.
    """
    try:
        sessions = [open_session(path) for path in find_sessions([folder])]
    except StoreError as error:
        return [str(error)]
    violations: list[str] = []
    unclosed = 0
    for session in sessions:
        is_closed, damage = _read_ending(session)
        unclosed += not is_closed
        records = read_records(session).array
        found = [
            f"{violation.invariant}: {violation.sentence}"
            for result in check_session(session)
            if result.invariant.severity is Severity.CRITICAL or result.invariant.name in warnings
            for violation in result.violations
        ]
        found += check(session, records, is_last=session is sessions[-1])
        closed = records[records["kind"] == Kind.CLOSED]
        ends = [
            f"a connection ended as {CloseReason(int(record['flags'])).name}, own log {int(record['aux'])}"
            for record in closed
            if int(record["flags"]) in impossible_ends
        ]
        where = f"{folder.name}/{session.path.name}"
        problems = [*damage, *found[:NAMED_MAX], *ends[:NAMED_MAX]]
        violations += [f"{where}: {problem}" for problem in problems]
    if unclosed > unclean_ends:
        violations.append(
            f"{folder.name}: {unclosed} sessions were not closed, {unclean_ends} nodes were killed"
        )
    return violations


def _read_ending(session: Session) -> tuple[bool, list[str]]:
    """Whether a session was closed in order, and what in it cannot be read."""
    facts, damage = read_facts(session)
    is_closed = bool(facts) and facts[-1].fields.get("text") == CLOSED_NOTE
    return is_closed, [
        f"{one.path} at {one.position}: {one.reason}"
        for one in (*damage, *read_segments(session).damage, *read_records(session).damage)
        # How a recorder ends that is killed while it begins a segment, or before its first fact.
        if is_closed or not (one.reason.startswith("a header of") or one.reason == "missing")
    ]


def _check_last_report(records: np.ndarray, *, is_last: bool, end_offset: int) -> list[str]:
    # Not the last report: one that connects anew may ask for bytes that it has, to compare them.
    highest = int(records["offset"][records["kind"] == Kind.REPORTED].max(initial=-1))
    return (
        [f"the highest report was {highest}, not {end_offset}"] if is_last and highest != end_offset else []
    )


def _check_needs(records: np.ndarray, *, copies_needed: int) -> list[str]:
    """Every put waited for as many copies as the setup asks for; that it had them, the registry says."""
    need = records["size"][records["kind"] == Kind.WAIT_BEGIN] - 1
    too_few = need[need < copies_needed]
    return [f"{len(too_few)} puts waited for less than {copies_needed} copies"] if len(too_few) else []


def _check_last_acks(records: np.ndarray, *, is_last: bool, end_offset: int) -> list[str]:
    final_acks = set(records["offset"][records["kind"] == Kind.CLOSED].tolist())
    if not is_last or end_offset in final_acks:
        return []
    return [f"no connection's last ack was {end_offset}, but {sorted(final_acks)[-4:]}"]


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - NAMED_MAX} more" if len(texts) > NAMED_MAX else ""
    return "; ".join(texts[:NAMED_MAX]) + more
