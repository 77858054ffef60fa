"""Roles of a node in controller mode over time, and the events of their changes. Pure.

A node's answers are compared with the one before. Of a group only its master reports the sync-state set: the
others know it some seconds later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from trioha.broker_status import ControlStatus
from trioha.severity import Severity
from trioha_monitor.view import EventKind, RoleSpan

SPANS_MAX: Final = 256
"""Roles that are kept of one node."""

Add = Callable[[EventKind, str, Severity], None]
"""Adds an event about the node."""


class RoleHistory:
    """The roles of one node, oldest first."""

    def __init__(self) -> None:
        self._spans: deque[RoleSpan] = deque(maxlen=SPANS_MAX)
        self._frozen: tuple[RoleSpan, ...] | None = ()

    def add(self, role: str, epoch: int | None, *, at_ms: int) -> None:
        """It has this role now; empty for a node that does not answer.

        None is an epoch that is not known: that of the same role before or after it stands for it.
        """
        last = self._spans[-1] if self._spans else None
        if last is not None and last.role == role and (epoch is None or epoch == last.epoch):
            return
        if last is not None and last.role == role and last.epoch is None:
            at_ms = self._spans.pop().time_ms
        self._spans.append(RoleSpan(at_ms, role, epoch))
        self._frozen = None

    def gone(self, *, at_ms: int) -> None:
        """It does not answer. Nothing happens if it never had a role."""
        if self._spans:
            self.add("", None, at_ms=at_ms)

    def freeze(self) -> tuple[RoleSpan, ...]:
        """All that are kept: the same object until there is another one."""
        if self._frozen is None:
            self._frozen = tuple(self._spans)
        return self._frozen


def compare_control(before: ControlStatus | None, now: ControlStatus, add: Add) -> None:
    """Add the events of what has changed from `before` to `now`; None for the first answer."""
    compare_roles(before, now, add)
    compare_sets(before, now, add)
    compare_controllers(before, now, add)


def compare_roles(before: ControlStatus | None, now: ControlStatus, add: Add) -> None:
    """`compare_control` of role, epoch and master."""
    if before is None or (before.role, before.master_epoch, before.master_id) == (
        now.role,
        now.master_epoch,
        now.master_id,
    ):
        return
    if before.role == now.role and None in {before.master_epoch, now.master_epoch}:
        # Of a RocketMQ broker it is not known while no controller answers.
        return
    was = "had no role" if before.role == "none" else f"was {_role_text(before)}"
    if now.role == "none":
        if before.role != "none":
            add(EventKind.ROLE, f"has no role; {was}", Severity.CRITICAL)
        return
    severity = Severity.NOTICE if before.role in {now.role, "none"} else Severity.WARNING
    add(EventKind.ROLE, f"is {_role_text(now)}; {was}", severity)


def _role_text(control: ControlStatus) -> str:
    if control.role == "slave" and control.master_id is not None:
        return f"slave of broker {control.master_id} in epoch {control.master_epoch}"
    return f"{control.role} of epoch {control.master_epoch}"


def compare_sets(before: ControlStatus | None, now: ControlStatus, add: Add) -> None:
    """`compare_control` of a master's sync-state set."""
    if now.role != "master" or now.sync_state_set_epoch is None:
        return
    if (
        before is None
        or before.sync_state_set_epoch is None
        or (before.role, before.master_epoch) != ("master", now.master_epoch)
    ):
        if now.is_set_short:
            add(EventKind.SET, _short_text(now), Severity.CRITICAL)
        return
    was, members = set(before.sync_state_set), set(now.sync_state_set)
    if was == members:
        return
    came, left = sorted(members - was), sorted(was - members)
    changes = [f"{_ids(came)} came in"] * bool(came) + [f"{_ids(left)} left"] * bool(left)
    severity = Severity.CRITICAL if now.is_set_short else Severity.WARNING if left else Severity.GOOD
    short = f": {_short_text(now)}" if now.is_set_short else ""
    add(
        EventKind.SET,
        f"sync-state set {set_text(now.sync_state_set)}, {' and '.join(changes)}{short}",
        severity,
    )


def _short_text(control: ControlStatus) -> str:
    return (
        f"{len(control.sync_state_set)} in the set, fewer than minInSyncReplicas {control.in_sync_min}: "
        "messages are refused"
    )


def _ids(broker_ids: list[int]) -> str:
    return ", ".join(map(str, broker_ids))


def set_text(members: tuple[int, ...]) -> str:
    """A sync-state set, `{1, 2}`."""
    return f"{{{', '.join(map(str, members))}}}"


def compare_controllers(before: ControlStatus | None, now: ControlStatus, add: Add) -> None:
    """`compare_control` of the leading controller and of refusals."""
    leader = None if before is None else before.leader
    if now.leader is None and (before is None or leader is not None):
        reasons = "; ".join(f"{link.address}: {link.reason}" for link in now.controllers if link.reason)
        text = f"no controller leads{f': {reasons}' if reasons else ''}"
        add(EventKind.CONTROLLER, text, Severity.CRITICAL)
    elif now.leader is not None and before is not None and now.leader != leader:
        before_it = "" if leader is None else f" in place of {leader}"
        add(EventKind.CONTROLLER, f"controller {now.leader} leads{before_it}", Severity.GOOD)
    refused = "" if before is None else before.refusal
    if now.refusal and now.refusal != refused:
        add(EventKind.CONTROLLER, f"refused by the controllers: {now.refusal}", Severity.WARNING)
