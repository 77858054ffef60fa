"""Defects of controller mode that its simulation finds; some of them fault runs, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from attrs import evolve

from tests.simulation.planting import Defect, plants
from trioha.controller.agent import ControllerAgent
from trioha.controller.bodies import MemberSet
from trioha.controller.protocol import RoleNotice
from trioha.controller.role import MasterDecision, Outcome, Role, RoleTracker
from trioha.ha.autoswitch.consistent_point import ConsistentPoint
from trioha.ha.autoswitch.epoch_session import EpochSession
from trioha.ha.set_commit import SetQuorum, SetReplicas
from trioha.ha.sync_state_set import SyncStateSet
from trioha.node import role_changes
from trioha.store import cutting, opening
from trioha.store.dispatch import Dispatcher
from trioha.store.epochs import EpochTable
from trioha.store.lock import AbortFile
from trioha.store.mapped_file import MappedFile
from trioha.store.message_store import MessageStore
from trioha.watermark import Watermark

PLANTED: list[Defect] = []
_plants = partial(plants, PLANTED)


# -- cuts ------------------------------------------------------------------------------------------------


@_plants("a cut is not on disk when new bytes come", seed=2, option="cuts")
def _cut_in_memory() -> Iterator[None]:
    def remove_cut(directory: Path) -> None:
        with suppress(FileNotFoundError):
            (directory / "trioha-cut.json").unlink()

    with (
        patch.object(cutting, "save_cut", lambda directory, cut: None),
        patch.object(cutting, "remove_cut", remove_cut),
        patch.object(opening, "remove_cut", remove_cut),
        patch.object(MappedFile, "sync", lambda file: None),
        patch("trioha.store.log_files.sync_directory", lambda directory: None),
    ):
        yield


@_plants("a start does not complete a cut", seed=15, option="cuts")
def _cut_half_done() -> Iterator[None]:
    with patch.object(opening, "load_cut", lambda directory: None):
        yield


@_plants("a slave keeps what its master does not have", seed=4)
def _no_cut() -> Iterator[None]:
    real = EpochSession._join

    def join(session: EpochSession) -> None:
        cut, session._cut = session._cut, lambda offset: iter(())
        try:
            real(session)
        finally:
            session._cut = cut

    with patch.object(EpochSession, "_join", join):
        yield


@_plants("a slave is cut farther than it must be", seed=4)
def _cut_too_far() -> Iterator[None]:
    real = ConsistentPoint.find

    def find(point: ConsistentPoint, known: EpochTable, master_end_offset: int) -> int:
        offset = real(point, known, master_end_offset)
        log = point._log
        if log.min_offset < offset < log.max_offset:
            return log.starts.last(before=offset)
        return offset

    with patch.object(ConsistentPoint, "find", find):
        yield


# -- roles -----------------------------------------------------------------------------------------------


@_plants("a stale epoch is accepted", option="two-leaders")
def _stale_epoch() -> Iterator[None]:
    real = RoleTracker._outcome_of

    def outcome_of(tracker: RoleTracker, decision: MasterDecision) -> Outcome:
        outcome = real(tracker, decision)
        is_older = decision.master_id is not None and decision.epoch < tracker.epoch
        return Outcome.NEW_ROLE if is_older else outcome

    with patch.object(RoleTracker, "_outcome_of", outcome_of):
        yield


def _decision(fields: Mapping[str, str], body: bytes | memoryview) -> MasterDecision:
    notice, members = RoleNotice.of(fields), MemberSet.of_body(body)
    return MasterDecision(
        epoch=notice.master_epoch or 0,
        master_id=notice.master_id,
        master_address=notice.master_address,
        members=members.members,
        set_epoch=members.epoch,
    )


@_plants("a notice is believed")
def _believed_notice() -> Iterator[None]:
    def role_changed(agent: ControllerAgent, fields: Mapping[str, str], body: bytes | memoryview) -> None:
        if agent._tracker is not None:
            agent._apply(_decision(fields, body))

    with patch.object(ControllerAgent, "role_changed", role_changed):
        yield


@_plants("a late notice is believed", seed=3)
def _believed_late_notice() -> Iterator[None]:
    def role_changed(agent: ControllerAgent, fields: Mapping[str, str], body: bytes | memoryview) -> None:
        tracker, decision = agent._tracker, _decision(fields, body)
        if tracker is None or tracker.role is None or decision.epoch >= tracker.role.epoch:
            agent._hurry.set()
            return
        tracker.role = Role(
            is_master=decision.master_id == tracker.broker_id,
            epoch=decision.epoch,
            broker_id=tracker.broker_id,
            master_id=decision.master_id,
            master_address=decision.master_address,
            sync_state_set=decision.members,
            sync_state_set_epoch=decision.set_epoch,
        )
        agent._changes.publish(tracker.role)

    with patch.object(ControllerAgent, "role_changed", role_changed):
        yield


@_plants("a new master begins no epoch")
def _no_epoch() -> Iterator[None]:
    real = role_changes.take_epoch

    def take_epoch(store: MessageStore, role: Role, config: object) -> None:
        epochs = store.epochs
        last = epochs.last_epoch
        real(store, evolve(role, epoch=last) if last > 0 else role, config)

    with patch.object(role_changes, "take_epoch", take_epoch):
        yield


# -- the sync-state set ----------------------------------------------------------------------------------


@_plants("a replica is proposed before it holds everything", seed=1)
def set_grown_too_early() -> Iterator[None]:
    def caught_up(one: SyncStateSet, *candidates: int) -> set[int]:
        links = one._links
        return {each for each in candidates if links[each].ack_offset >= 0 and not links[each].is_learner}

    with patch.object(SyncStateSet, "_caught_up", caught_up):
        yield


@_plants("an asyncLearner is proposed", seed=14)
def _proposed_learner() -> Iterator[None]:
    real = SyncStateSet.connected

    def connected(one: SyncStateSet, broker_id: int, **options: object) -> None:
        real(one, broker_id, **{**options, "is_learner": False})

    with patch.object(SyncStateSet, "connected", connected):
        yield


@_plants("the union is ignored while a proposal is open", seed=4)
def _no_union() -> Iterator[None]:
    real = SyncStateSet._changed

    def changed(one: SyncStateSet) -> None:
        proposal, one.open_proposal = one.open_proposal, None
        try:
            real(one)
        finally:
            one.open_proposal = proposal

    with patch.object(SyncStateSet, "_changed", changed):
        yield


@_plants("a member that is lost leaves the set without the controllers", seed=1)
def left_alone() -> Iterator[None]:
    real = SyncStateSet.disconnected

    def disconnected(one: SyncStateSet, broker_id: int, *, connection_id: int, now_s: float) -> None:
        real(one, broker_id, connection_id=connection_id, now_s=now_s)
        if broker_id not in one._links and broker_id in one.members:
            one.members -= {broker_id}
            one.open_proposal = None
            one._changed()

    with patch.object(SyncStateSet, "disconnected", disconnected):
        yield


# -- power loss ------------------------------------------------------------------------------------------


@_plants("the confirm offset is ahead of the master's disk", seed=30)
def _confirmed_before_flush() -> Iterator[None]:
    with patch.object(SyncStateSet, "confirm_offset", property(lambda one: one.held_offset)):
        yield


@_plants("a master that lost power goes on in its epoch", seed=34)
def _unnoticed_power_loss() -> Iterator[None]:
    with patch.object(AbortFile, "lost_power", property(lambda _: False)):
        yield


# -- acknowledgements ------------------------------------------------------------------------------------


@_plants("a put is PUT_OK below the confirm offset")
def ok_too_early() -> Iterator[None]:
    real = SetQuorum.begin

    def begin(one: SetQuorum, end_offset: int, now_s: float) -> tuple[int, Watermark | None]:
        need, mark = real(one, end_offset, now_s)
        return need, None if mark is None else Watermark(end_offset)

    with patch.object(SetQuorum, "begin", begin):
        yield


@_plants("a put is PUT_OK with fewer copies than inSyncReplicas", seed=7)
def _too_few_copies() -> Iterator[None]:
    with patch.object(SyncStateSet, "copies", lambda one, k: Watermark(1 << 62)):
        yield


@_plants("the copy of an asyncLearner counts for inSyncReplicas", seed=94)
def _counted_learner() -> Iterator[None]:
    real = SetReplicas.acknowledge

    def acknowledge(replicas: SetReplicas, connection_id: int, **options: Any) -> None:
        real(replicas, connection_id, **options)
        replicas.set._acks.acknowledge(str(replicas._ids[connection_id]), options["ack_offset"])

    with patch.object(SetReplicas, "acknowledge", acknowledge):
        yield


@_plants("the confirm offset is what any of the set holds", seed=4)
def _any_confirms() -> Iterator[None]:
    def update_confirm(one: SyncStateSet) -> None:
        most = max((link.ack_offset for link in one._links.values()), default=-1)
        if most > one.confirm.offset:
            one.confirm.advance(most)

    with patch.object(SyncStateSet, "_update_confirm", update_confirm):
        yield


@_plants("queues are built beyond the confirm offset", seed=1)
def _early_queues() -> Iterator[None]:
    with patch.object(Dispatcher, "limit_to", lambda dispatcher, limit: None):
        yield


@_plants("a slave acknowledges what it will cut", seed=1)
def _acked_before_cut() -> Iterator[None]:
    with patch.object(EpochSession, "ack_offset", property(lambda session: session._log.max_offset)):
        yield
