"""Invariants of a group of brokers under controllers: what all of its sessions together must show.

A session is checked alone by `trioha_sessions.invariants.rules`; these rules join the sessions of one
brokerName by the epochs of their roles (`trioha_sessions.role_lives`). Epochs order what happened on
different machines; wall clocks only order the lives of one broker. A life without its ROLE is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from attrs import frozen

from trioha.recording.events import GroupRole, Kind, SetEvent
from trioha.recording.reader import Session
from trioha.severity import Severity
from trioha_sessions.role_lives import RoleEvent, RoleLife, read_life

GROUP_FOUND_MAX: Final = 1000
"""Violations of an invariant that are kept of a group."""


@frozen
class Finding:
    """A record of a life that breaks a rule."""

    life: RoleLife
    event: RoleEvent
    sentence: str


@frozen
class GroupInvariant:
    """A property of every group."""

    name: str
    sentence: str
    severity: Severity
    check: Callable[[Sequence[RoleLife]], tuple[int, list[Finding]]]
    """Number of checked records, and the violations; of lives in the order of their starts."""

    def __reduce__(self) -> tuple[Callable[[str], GroupInvariant], tuple[str]]:
        """Pickled by its name: results travel between processes."""
        return group_invariant_named, (self.name,)


@frozen
class GroupViolation:
    """A record that breaks an invariant of its group."""

    invariant: str
    severity: Severity
    session: str
    broker_id: int
    """From the controllers."""
    seq: int
    at_ns: int
    """Wall clock."""
    sentence: str


@frozen
class GroupInvariantResult:
    """One invariant in one group."""

    invariant: GroupInvariant
    checked: int
    """Number of records that were checked; 0: nothing in these sessions shows whether it holds."""
    count: int
    """Number of violations."""
    violations: tuple[GroupViolation, ...]
    """The first ones."""


@frozen
class GroupResult:
    """All invariants of one group."""

    cluster_name: str
    broker_name: str
    results: tuple[GroupInvariantResult, ...]


def groups_of(lives: Iterable[RoleLife]) -> list[tuple[RoleLife, ...]]:
    """The lives of each group, in the order of their starts."""
    groups: dict[tuple[str, str], list[RoleLife]] = {}
    for life in lives:
        groups.setdefault(life.group, []).append(life)
    return [tuple(sorted(groups[group], key=_start)) for group in sorted(groups)]


def check_groups(sessions: Iterable[Session]) -> list[GroupResult]:
    """The results of all groups of these sessions, in this process.

    Raises StoreError if a segment was removed.
    """
    lives = (read_life(session) for session in sessions)
    return list(map(check_group, groups_of(life for life in lives if life is not None)))


def check_group(lives: Sequence[RoleLife]) -> GroupResult:
    """The results of a group, which has at least one life; `lives` in the order of their starts."""
    return GroupResult(*lives[0].group, tuple(_result(invariant, lives) for invariant in GROUP_INVARIANTS))


def _result(invariant: GroupInvariant, lives: Sequence[RoleLife]) -> GroupInvariantResult:
    checked, findings = invariant.check(lives)
    violations = tuple(
        GroupViolation(
            invariant=invariant.name,
            severity=invariant.severity,
            session=one.life.session,
            broker_id=one.life.broker_id,
            seq=one.event.seq,
            at_ns=one.event.at_ns,
            sentence=one.sentence,
        )
        for one in findings[:GROUP_FOUND_MAX]
    )
    return GroupInvariantResult(invariant, checked, len(findings), violations)


def _start(life: RoleLife) -> int:
    return life.began.at_ns


def _masters(lives: Sequence[RoleLife]) -> list[RoleLife]:
    return [life for life in lives if life.role is GroupRole.MASTER]


def _one_master(lives: Sequence[RoleLife]) -> tuple[int, list[Finding]]:
    known: dict[int, RoleLife] = {}
    findings = []
    checked = 0
    # A master's own word counts first.
    for life in (*_masters(lives), *(life for life in lives if life.role is GroupRole.SLAVE)):
        master_id = _master_of(life)
        if master_id is None or life.epoch < 0:
            continue
        checked += 1
        first = known.setdefault(life.epoch, life)
        if master_id != _master_of(first):
            sentence = (
                f"the master of epoch {life.epoch} is broker {master_id} here, "
                f"and broker {_master_of(first)} in {first.session}"
            )
            findings.append(Finding(life, life.began, sentence))
    return checked, findings


def _master_of(life: RoleLife) -> int | None:
    return life.broker_id if life.role is GroupRole.MASTER else life.master_id


def _epochs_forward(lives: Sequence[RoleLife]) -> tuple[int, list[Finding]]:
    findings: list[Finding] = []
    checked = 0
    latest: dict[int, RoleLife] = {}
    set_epochs: dict[int, tuple[int, RoleLife]] = {}
    for life in lives:
        if life.epoch < 0:
            continue
        checked += 1
        before = latest.get(life.broker_id)
        if before is not None and life.epoch < before.epoch:
            sentence = f"broker {life.broker_id} is in epoch {life.epoch} after epoch {before.epoch}"
            findings.append(Finding(life, life.began, f"{sentence} ({before.session})"))
        else:
            latest[life.broker_id] = life
        if life.role is not GroupRole.MASTER:
            continue
        for event in _changed_sets(life):
            checked += 1
            known, where = set_epochs.get(life.epoch, (-1, life))
            # A master that goes on within its epoch begins with the set that it had.
            if event.aux < known or (event.aux == known and where is life):
                sentence = f"set epoch {event.aux} after {known}, in epoch {life.epoch}"
                findings.append(Finding(life, event, sentence))
            else:
                set_epochs[life.epoch] = event.aux, life
    return checked, findings


def _changed_sets(life: RoleLife) -> Iterator[RoleEvent]:
    return (
        event
        for event in life.events
        if event.kind is Kind.SYNC_STATE_SET and event.flags == SetEvent.CHANGED
    )


def _confirmed_kept(lives: Sequence[RoleLife]) -> tuple[int, list[Finding]]:
    findings = []
    checked = 0
    promise: tuple[int, RoleLife] | None = None
    # Stable: lives within an epoch, which are one broker's, stay in the order of time.
    for life in sorted(_masters(lives), key=_epoch):
        if promise is not None:
            checked += 1
            offset, maker = promise
            if life.log_end_offset < offset:
                event = maker.promised
                assert event is not None, "it is what was promised"
                sentence = (
                    f"the master of epoch {life.epoch} begins with a log to {life.log_end_offset:,}; "
                    f"{_promise_text(event)} in epoch {maker.epoch} (record {event.seq} of {maker.session})"
                )
                findings.append(Finding(life, life.began, sentence))
                # What is lost is lost once.
                promise = None
        made = life.promised
        if made is not None and (promise is None or made.offset > promise[0]):
            promise = made.offset, life
    return checked, findings


def _epoch(life: RoleLife) -> int:
    return life.epoch


def _promise_text(event: RoleEvent) -> str:
    if event.kind is Kind.CONFIRMED:
        return f"the confirm offset was {event.offset:,}"
    return f"request {event.aux} was PUT_OK at {event.offset:,}"


def _cut_not_acknowledged(lives: Sequence[RoleLife]) -> tuple[int, list[Finding]]:
    findings = []
    checked = 0
    acknowledged: dict[int, tuple[RoleEvent, RoleLife]] = {}
    for life in _masters(lives):
        event = life.put_ok
        if event is None or not life.waits_for_set:
            continue
        known = acknowledged.get(life.epoch)
        if known is None or event.offset > known[0].offset:
            acknowledged[life.epoch] = event, life
    masters = {life.epoch for life in _masters(lives) if life.waits_for_set}
    for life in lives:
        for cut in life.events:
            if cut.kind is not Kind.LOG_CUT or cut.size not in masters:
                continue
            checked += 1
            found = acknowledged.get(cut.size)
            if found is not None and found[0].offset > cut.offset:
                put, master = found
                sentence = (
                    f"bytes of epoch {cut.size} from {cut.offset:,} to {cut.aux:,} were cut; "
                    f"request {put.aux} was PUT_OK there at {put.offset:,} "
                    f"(record {put.seq} of {master.session})"
                )
                findings.append(Finding(life, cut, sentence))
    return checked, findings


GROUP_INVARIANTS: Final = (
    GroupInvariant(
        "one-master-per-epoch",
        "All brokers of a group name the same master of an epoch.",
        Severity.CRITICAL,
        _one_master,
    ),
    GroupInvariant(
        "epochs-go-forward",
        "The epochs of a broker's roles do not go back, nor do those of the sync-state set within an epoch.",
        Severity.CRITICAL,
        _epochs_forward,
    ),
    GroupInvariant(
        "confirmed-is-kept",
        "With allAckInSyncStateSet, each later master has all that was PUT_OK or confirmed before.",
        Severity.CRITICAL,
        _confirmed_kept,
    ),
    GroupInvariant(
        "cut-was-not-put-ok",
        "With allAckInSyncStateSet, no byte that is cut from a log was PUT_OK.",
        Severity.CRITICAL,
        _cut_not_acknowledged,
    ),
)
"""Every invariant of groups, in the order in which they are shown."""


def group_invariant_named(name: str) -> GroupInvariant:
    """One of `GROUP_INVARIANTS`."""
    return next(one for one in GROUP_INVARIANTS if one.name == name)
