"""What the screen looks like, cell by cell. `pytest --snapshot-update` takes a new picture: look at it."""

from __future__ import annotations

from collections.abc import Callable

import trio
from textual.pilot import Pilot

from tests.monitor.builders import example_snapshot
from trioha_monitor.app import MonitorApp
from trioha_monitor.feed import Publish
from trioha_monitor.widgets.row_table import RowTable


def test_the_screen_at_120_by_40(snap_compare: Callable[..., bool]) -> None:
    async def feed(publish: Publish) -> None:
        publish(example_snapshot())
        await trio.sleep_forever()

    async def until_shown(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, MonitorApp)
        while not pilot.app.monitor_screen.query_one("#nodes", RowTable).lines:
            await pilot.pause(0.01)

    assert snap_compare(MonitorApp(feed), terminal_size=(120, 40), run_before=until_shown)
