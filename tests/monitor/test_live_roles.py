"""The live source on a pair in controller mode whose master changes, under a controller of this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.interop.controller import eventually
from tests.monitor.test_live_nodes import SETTINGS, Watch
from tests.node.test_controller_mode import BOTH, Member, scripted_controller
from trioha_monitor.live import live_views
from trioha_monitor.view import ClusterView, EventKind, Health, NodeView

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def has_roles(view: ClusterView, *roles: tuple[str, int]) -> bool:
    """Whether the nodes have these roles and epochs, in their order, and know the set of both."""
    return [
        (node.control.role, node.control.master_epoch)
        for node in view.nodes
        if node.control is not None and node.control.sync_state_set == (1, 2)
    ] == list(roles)


def test_a_pair_whose_master_changes_keeps_its_panels_and_shows_the_change(tmp_path: Path) -> None:
    with scripted_controller() as controller:
        members: list[Member] = []
        try:
            members.append(Member(tmp_path, "first", controller, allAckInSyncStateSet=True))
            eventually("a master", lambda: True if controller.group.master_id == 1 else None)
            members.append(Member(tmp_path, "second", controller, allAckInSyncStateSet=True))
            controller.wait_for_set(BOTH)
            first, second = members
            watch, seen = Watch(), Seen()

            def show(view: ClusterView) -> None:
                seen.add(view)
                watch.show(view)

            def change() -> None:
                controller.elect(2)
                controller.notify(1)

            async def main() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(live_views([first.address, second.address], settings=SETTINGS), show)
                    await watch.until(lambda view: has_roles(view, ("master", 1), ("slave", 1)))
                    await watch.until(lambda view: [row.is_connected for row in view.replicas] == [True])
                    await trio.to_thread.run_sync(change)
                    await watch.until(lambda view: has_roles(view, ("slave", 2), ("master", 2)))
                    seen.last = await watch.until(
                        lambda view: (
                            [(row.is_connected, row.label) for row in view.replicas]
                            == [(True, "broker-x #1")]
                        )
                    )
                    nursery.cancel_scope.cancel()

            trio.run(main)
        finally:
            for member in members:
                member.end()
    last = seen.last
    assert last is not None
    assert [node.label for node in last.nodes] == ["broker-x #1", "broker-x #2"]
    for node, expected in zip(
        last.nodes, ([("master", 1), ("slave", 2)], [("slave", 1), ("master", 2)]), strict=True
    ):
        assert [(span.role, span.epoch) for span in node.roles] == expected
        assert node.control is not None
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


class Seen:
    """Nodes that were down in any view."""

    def __init__(self) -> None:
        self.down: list[NodeView] = []
        self.last: ClusterView | None = None

    def add(self, view: ClusterView) -> None:
        self.down += [node for node in view.nodes if node.health is Health.DOWN]
