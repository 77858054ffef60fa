"""The live source on a pair in controller mode whose master changes, under a controller of this process."""

from __future__ import annotations

import pytest
import trio
from attrs import evolve

from tests.interop.controller import eventually
from tests.monitor.test_live_nodes import SETTINGS
from tests.monitor.watching import Watch
from tests.node.test_controller_mode import BOTH, Member, scripted_controller
from trioha_monitor.answer_recording import MonitorRecording
from trioha_monitor.live import live_views
from trioha_monitor.replay import open_replay
from trioha_monitor.view import ClusterView, EventKind, Health, NodeView

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.timeout(300)]


def has_roles(view, *roles):
    """Whether the nodes have these roles and epochs, in their order, and know the set of both."""
    return [
        (node.control.role, node.control.master_epoch)
        for node in view.nodes
        if node.control is not None and node.control.sync_state_set == (1, 2)
    ] == list(roles)


def test_a_pair_whose_master_changes_keeps_its_panels_and_shows_the_change(tmp_path):
    with scripted_controller() as controller:
        members = []
        try:
            members.append(Member(tmp_path, "first", controller, allAckInSyncStateSet=True))
            eventually("a master", lambda: True if controller.group.master_id == 1 else None)
            members.append(Member(tmp_path, "second", controller, allAckInSyncStateSet=True))
            controller.wait_for_set(BOTH)
            first, second = members
            watch, seen = Watch(), Seen()
            recording = MonitorRecording(tmp_path / "recordings")
            recording.start()

            def is_over(view):
                return has_roles(view, ("slave", 2), ("master", 2)) and [
                    (row.is_connected, row.label) for row in view.replicas
                ] == [(True, "broker-x #1")]

            def show(view):
                seen.add(view)
                if seen.last is None and is_over(view):
                    seen.last = view
                watch.show(view)

            def note(*answer):
                # Another answer of the same millisecond would be in the replay of the last view.
                if seen.last is None:
                    recording.note(*answer)

            def change():
                controller.elect(2)
                controller.notify(1)

            async def main():
                async with trio.open_nursery() as nursery:
                    settings = evolve(SETTINGS, on_observed=note)
                    nursery.start_soon(live_views([first.address, second.address], settings=settings), show)
                    await watch.until(lambda view: has_roles(view, ("master", 1), ("slave", 1)))
                    await watch.until(lambda view: [row.is_connected for row in view.replicas] == [True])
                    await trio.to_thread.run_sync(change)
                    await watch.until(is_over)
                    nursery.cancel_scope.cancel()

            trio.run(main)
            recorded = recording.stop()
        finally:
            for member in members:
                member.end()
    last = seen.last
    assert [node.label for node in last.nodes] == ["broker-x #1", "broker-x #2"]
    for node, expected in zip(
        last.nodes, ([("master", 1), ("slave", 2)], [("slave", 1), ("master", 2)]), strict=True
    ):
        assert [(span.role, span.epoch) for span in node.roles] == expected
        assert node.control.leader == controller.address
    assert last.replicas[0].master_label == "broker-x #2"
    roles = {event.node: event.text for event in last.events if event.kind is EventKind.ROLE}
    assert roles == {
        "broker-x #1": "is slave of broker 2 in epoch 2; was master of epoch 1",
        "broker-x #2": "is master of epoch 2; was slave of broker 1 in epoch 1",
    }
    # Their connections ended with the roles, and new ones were made: no node was ever down.
    assert seen.down == []
    assert [
        event.text for event in last.events if "answers" in event.text and "no longer" in event.text
    ] == []
    assert_replayed(recorded, last)


def assert_replayed(recorded, last):
    """The replay of the monitor's recording shows the view `last`."""
    source = open_replay([recorded], clock_s=lambda: 0.0)
    while source.work(for_s=1.0):
        pass
    again = source.view_at(last.time_ms * 1_000_000)
    assert again.nodes == last.nodes
    assert again.replicas == last.replicas
    assert [(event.kind, event.text) for event in again.events] == [
        (event.kind, event.text) for event in last.events
    ]


class Seen:
    """Nodes that were down in any view."""

    def __init__(self):
        self.down: list[NodeView] = []
        self.last: ClusterView | None = None

    def add(self, view):
        self.down += [node for node in view.nodes if node.health is Health.DOWN]
