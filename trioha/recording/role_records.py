"""Makes the records of controller mode, each with its fact, of a recording."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trioha.recording.events import (
    OLD_ROLE_SHIFT,
    ControllerEvent,
    EventSink,
    GroupRole,
    Kind,
    SetEvent,
)

NO_ID: Final = -1
"""Stands for an id that the controllers have not given."""


def record_role(
    sink: EventSink,
    *,
    role: GroupRole,
    former: GroupRole,
    epoch: int,
    broker_id: int,
    master_id: int,
    master_address: str | None,
    max_offset: int,
) -> None:
    """Record the role with which a session begins; `epoch` and ids are -1 where there are none."""
    sink.fact(
        "role",
        role=role.name,
        former=former.name,
        epoch=epoch,
        brokerId=broker_id,
        masterId=master_id,
        masterAddress=master_address,
        maxOffset=max_offset,
    )
    sink.emit(Kind.ROLE, offset=max_offset, aux=epoch, size=broker_id, flags=role | former << OLD_ROLE_SHIFT)


def record_epoch(sink: EventSink, epoch: int, *, offset: int, role: GroupRole, broker_id: int) -> None:
    """Record that an epoch has begun in the log at `offset`, -1 where that is not known."""
    sink.emit(Kind.EPOCH, offset=offset, aux=epoch, size=broker_id, flags=role)


def record_set(
    sink: EventSink, event: SetEvent, *, members: Iterable[int], set_epoch: int, confirm_offset: int
) -> None:
    """Record what happened to the sync-state set; `confirm_offset` is -1 where it is not known."""
    ids = sorted(members)
    sink.fact("sync_state_set", event=event.name, members=ids, setEpoch=set_epoch)
    sink.emit(Kind.SYNC_STATE_SET, offset=confirm_offset, aux=set_epoch, size=len(ids), flags=event)


def record_leader(sink: EventSink, address: str | None) -> None:
    """Record which controller leads; None for none."""
    if address is None:
        sink.emit(Kind.CONTROLLER, flags=ControllerEvent.LOST)
    else:
        sink.fact("controller", address=address)
        sink.emit(Kind.CONTROLLER, flags=ControllerEvent.LEADER)
