"""Decisions of controllers are ordered by their epochs, however they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.controller.role import MasterDecision, Outcome, RoleTracker


def decision(
    epoch: int, master_id: int | None = 1, members: str = "1", set_epoch: int = 1, address: str | None = None
) -> MasterDecision:
    return MasterDecision(
        epoch=epoch,
        master_id=master_id,
        master_address=address or (None if master_id is None else f"host-{master_id}:1"),
        members=frozenset(map(int, members)),
        set_epoch=set_epoch,
    )


@pytest.mark.parametrize(
    ("next_decision", "outcome"),
    [
        (decision(4, 2, "2", 3), Outcome.NEW_ROLE),
        (decision(4, 1, "1", 3), Outcome.NEW_ROLE),
        # The set of a later epoch counts, whatever its own epoch is.
        (decision(4, 2, "2", 1), Outcome.NEW_ROLE),
        (decision(3, 1, "1", 6), Outcome.NEW_SET),
        (decision(3, 1, "12", 5), Outcome.UNCHANGED),
        (decision(3, 1, "12", 5, "host-1:2"), Outcome.NEW_ADDRESS),
        (decision(3, 1, "123", 4), Outcome.STALE),
        (decision(3, 2, "12", 6), Outcome.CONTRADICTORY),
        (decision(2, 1, "123", 9), Outcome.STALE),
        (decision(3, None, "12", 6), Outcome.NO_MASTER),
        (decision(5, None, "12", 6), Outcome.NO_MASTER),
        (decision(2, None, "12", 6), Outcome.STALE),
    ],
)
def test_a_decision_beside_a_role(next_decision: MasterDecision, outcome: Outcome) -> None:
    tracker = RoleTracker(1)
    assert tracker.apply(decision(3, 1, "12", 5)) is Outcome.NEW_ROLE
    before = tracker.role
    assert tracker.apply(next_decision) is outcome
    if not outcome.is_change:
        assert tracker.role == before
    else:
        assert tracker.role.epoch == next_decision.epoch
        assert tracker.role.sync_state_set == next_decision.members
        assert tracker.role.master_address == next_decision.master_address
        assert tracker.role.is_master is (next_decision.master_id == 1)


def test_a_decision_older_than_the_log_gives_no_role() -> None:
    tracker = RoleTracker(1, epoch_min=7)
    assert tracker.apply(decision(6)) is Outcome.STALE
    assert tracker.role is None
    assert tracker.apply(decision(7)) is Outcome.NEW_ROLE


def test_a_master_of_a_doubtful_epoch_resigns_and_of_later_ones_is_master() -> None:
    tracker = RoleTracker(1, epoch_min=6, doubtful_epoch=7)
    for epoch in (6, 7):
        assert tracker.apply(decision(epoch)) is Outcome.DOUBTFUL
        assert tracker.role is None
    assert not Outcome.DOUBTFUL.is_change
    assert not Outcome.DOUBTFUL.is_role
    assert tracker.apply(decision(5)) is Outcome.STALE
    assert tracker.apply(decision(8)) is Outcome.NEW_ROLE
    assert tracker.apply(decision(7)) is Outcome.STALE


def test_another_master_of_a_doubtful_epoch_is_followed() -> None:
    tracker = RoleTracker(1, epoch_min=7, doubtful_epoch=7)
    assert tracker.apply(decision(7, 2, "12")) is Outcome.NEW_ROLE


@given(st.data())
def test_any_order_of_decisions_ends_at_the_latest(data: st.DataObject) -> None:
    """A history as controllers make it; its decisions lost, doubled and out of order."""
    master_of = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    history, set_epoch = [], 0
    for epoch, master_id in enumerate(master_of, start=1):
        for _ in range(data.draw(st.integers(1, 3))):
            set_epoch += 1
            history.append(decision(epoch, master_id, str(master_id), set_epoch))
    received = data.draw(st.lists(st.sampled_from(history), min_size=1, max_size=20))
    tracker = RoleTracker(1)
    epochs = []
    for each in received:
        assert tracker.apply(each) is not Outcome.CONTRADICTORY
        epochs.append((tracker.role.epoch, tracker.role.sync_state_set_epoch))
    assert epochs == sorted(epochs)
    latest = max(received, key=lambda each: (each.epoch, each.set_epoch))
    role = tracker.role
    assert (role.epoch, role.sync_state_set_epoch) == (latest.epoch, latest.set_epoch)
    assert (role.master_id, role.sync_state_set) == (latest.master_id, latest.members)
