"""Whether a node lives and is ready: what its probes, the service manager and operators are told.

A node is ready while it does what its role is for: a master takes messages and can answer them PUT_OK, a
slave follows its master. Each check is computed when it is asked for; before a node serves, between two roles
and while it stops there is one check alone, which fails.

| check | fails |
|---|---|
| `node` | while the store is recovered, while the role changes, while the node stops |
| `disk` | while the disk keeps puts from being stored: full, or it refused a file |
| `queues` | on a master whose queues are not at the log's end yet: it refuses puts |
| `control` | in controller mode: no role, no leading controller, too small a sync-state set |
| `in-step` | on a SYNC_MASTER with too few slaves in sync; on a slave that does not follow |
| `progress` | while a sync of the log, or a change of the role, hangs |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from attrs import frozen

from trioha.broker_status import BrokerStatus
from trioha.recording.events import HaState

RECOVERING: Final = "the store is being recovered"
CHANGING_ROLE: Final = "the role is changing"
STOPPING: Final = "the node is stopping"


@frozen
class Check:
    """One thing that must hold."""

    name: str
    failure: str = ""
    """Why it does not hold, for operators; empty if it does."""


@frozen(kw_only=True)
class Facts:
    """What the checks of a node that serves are computed from."""

    status: Callable[[], BrokerStatus]
    slaves_needed: int
    """Slaves that a put waits for; 0 on a slave and on an ASYNC_MASTER."""
    are_queues_behind: Callable[[], bool]
    """Whether puts are refused until queues are at the log's end."""
    hanging: Callable[[], str | None]
    """What hangs; None if nothing does."""


class Health:
    """The checks of one node, from its start to its end."""

    def __init__(self) -> None:
        self._facts: Facts | None = None
        self._reason = RECOVERING
        """Why it does not serve, while it does not."""

    @contextmanager
    def serving(self, facts: Facts) -> Iterator[None]:
        """The node serves in the block."""
        self._facts = facts
        try:
            yield
        finally:
            self._facts = None

    def ends(self, reason: str) -> None:
        """The node does not serve from now on: `CHANGING_ROLE` or `STOPPING`."""
        self._reason = reason

    def checks(self, *, without: Collection[str] = ()) -> tuple[Check, ...]:
        """The checks as of now, but those whose names are in `without`."""
        if (facts := self._facts) is None:
            found: tuple[Check, ...] = (Check("node", self._reason),)
        else:
            found = (Check("node"), *checks_of(facts))
        return tuple(check for check in found if check.name not in without)

    def summary(self) -> str:
        """One line: whether the node is ready, or the first reason why it is not."""
        failures = [check.failure for check in self.checks() if check.failure]
        return f"not ready: {failures[0]}" if failures else "ready"


def checks_of(facts: Facts) -> Iterator[Check]:
    """The checks of a node that serves."""
    status = facts.status()
    yield Check("disk", status.put_refusal)
    if status.role != "SLAVE":
        behind = "puts are refused until the queues are at the log's end" if facts.are_queues_behind() else ""
        yield Check("queues", behind)
    if status.control is not None:
        yield Check("control", _control_failure(status))
    if status.control is None or status.control.role != "none":
        yield Check("in-step", _step_failure(status, facts.slaves_needed))
    yield Check("progress", facts.hanging() or "")


def _control_failure(status: BrokerStatus) -> str:
    control = status.control
    assert control is not None, "a node of controller mode has it"
    if control.role == "none":
        return "the controllers gave the node no role yet"
    if control.leader is None:
        return "no leading controller is known"
    if control.is_set_short:
        return (
            f"the sync-state set has {len(control.sync_state_set)} brokers, "
            f"minInSyncReplicas is {control.in_sync_min}"
        )
    return ""


def _step_failure(status: BrokerStatus, slaves_needed: int) -> str:
    if status.role == "SLAVE":
        link = status.client
        if link is None:
            return "there is no link to a master"
        if link.verdict:
            return f"the log cannot follow its master's: {link.verdict}"
        return "" if link.state == HaState.TRANSFER.name else "there is no connection to the master"
    in_sync = status.in_sync_slaves or 0
    return f"{in_sync} of {slaves_needed} slaves are in sync" if in_sync < slaves_needed else ""
