"""The screen, driven by keys. Sync tests: Textual runs on asyncio, and pytest-trio owns the async ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import trio
from attrs import evolve
from rich.text import Text
from textual.app import App
from textual.events import Unmount
from textual.pilot import Pilot

from tests.monitor.builders import MASTER, SLAVE, connection, example_snapshot, master, slave
from trioha_monitor.app import MonitorApp
from trioha_monitor.feed import Feed, Publish
from trioha_monitor.model import ClusterModel, Sample, Snapshot
from trioha_monitor.screen import MonitorScreen
from trioha_monitor.widgets.help import KEYS, HelpScreen
from trioha_monitor.widgets.lag_graph import LagGraph
from trioha_monitor.widgets.row_table import RowTable

Steps = Callable[[MonitorApp, Pilot[None]], Awaitable[None]]


def feed_of(*snapshots: Snapshot, pause_s: float = 0.0) -> Feed:
    async def feed(publish: Publish) -> None:
        for snapshot in snapshots:
            publish(snapshot)
            await trio.sleep(pause_s)
        await trio.sleep_forever()

    return feed


def drive(steps: Steps, feed: Feed, *, size: tuple[int, int] = (120, 40)) -> MonitorApp:
    app = MonitorApp(feed)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            await steps(app, pilot)

    asyncio.run(run())
    return app


async def settle(app: MonitorApp, pilot: Pilot[None]) -> None:
    """Until a snapshot is on the screen."""
    for _ in range(200):
        await pilot.pause(0.01)
        if app.monitor_screen.query_one("#nodes", RowTable).lines or not app.is_running:
            return
    raise AssertionError("no snapshot came")


def nodes(app: MonitorApp) -> list[str]:
    return app.monitor_screen.query_one("#nodes", RowTable).lines


def connections(app: MonitorApp) -> list[str]:
    return app.monitor_screen.query_one("#connections", RowTable).lines


def graph(app: MonitorApp) -> LagGraph:
    return app.monitor_screen.query_one(LagGraph)


def drawn(app: MonitorApp) -> str:
    return "\n".join(graph(app).lines)


def title(app: MonitorApp) -> str:
    return Text.from_markup(graph(app).border_title or "").plain


def test_a_row_for_every_node_and_every_connection() -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        up, slave_row, down, unasked = nodes(app)
        assert up.split()[:5] == ["●", "UP", "2m", "SYNC_MASTER", "broker-a"]
        assert "196,994,567" in up
        assert "← 127.0.0.1:10912 ack" in slave_row
        assert down.startswith("✗ DOWN 10s")
        assert "Connection refused" in down
        assert unasked.startswith("◌ CONNECTING")
        live, lost = connections(app)
        assert live.startswith("● TRANSFER")
        assert "127.0.0.1:43112" in live
        assert lost.startswith("✗ LOST 9s")

    drive(steps, feed_of(example_snapshot()))


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
def test_every_line_fits_and_the_essential_columns_are_there(size: tuple[int, int]) -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        for identity, essential in (
            ("#nodes", {"state", "role", "name", "max", "note"}),
            ("#connections", {"state", "slave", "ack", "lag", "rate", "history"}),
        ):
            table = app.monitor_screen.query_one(identity, RowTable)
            assert essential <= set(table.shown_columns)
            width = table.scrollable_content_region.width
            assert all(Text(line).cell_len <= width for line in table.lines)
            assert table.scrollable_content_region.height >= 1 + len(table.lines)
        assert graph(app).size.height >= 6

    drive(steps, feed_of(example_snapshot()), size=size)


@pytest.mark.parametrize("size", [(1, 1), (12, 4), (40, 10), (300, 8)])
def test_a_terminal_of_a_silly_size_is_no_reason_to_fail(size: tuple[int, int]) -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark", "escape", "down", "plus", "t")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert nodes(app)

    app = MonitorApp(feed_of(example_snapshot()))

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause(0.1)
            await steps(app, pilot)

    asyncio.run(run())
    assert app.failure is None


def test_a_wide_terminal_shows_every_column() -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert {"address", "version", "min", "flushed"} <= set(
            app.monitor_screen.query_one("#nodes", RowTable).shown_columns
        )
        assert {"master", "max", "sent", "age"} <= set(
            app.monitor_screen.query_one("#connections", RowTable).shown_columns
        )

    drive(steps, feed_of(example_snapshot()), size=(200, 50))


def test_the_columns_follow_the_terminal_when_it_changes_its_size() -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        table = app.monitor_screen.query_one("#nodes", RowTable)
        wide = set(table.shown_columns)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert set(table.shown_columns) < wide
        await pilot.resize_terminal(200, 50)
        await pilot.pause()
        assert set(table.shown_columns) == wide

    drive(steps, feed_of(example_snapshot()), size=(200, 50))


def test_new_figures_replace_old_ones_and_a_node_that_goes_down_says_so() -> None:
    model = ClusterModel([MASTER], interval_s=0.2)
    model.observe(Sample(MASTER, at_s=1.0, status=master(1000)))
    before = model.snapshot(1.0)
    model.observe(Sample(MASTER, at_s=2.0, fault="Connection refused"))
    down = model.snapshot(5.0)
    model.observe(Sample(MASTER, at_s=6.0, status=master(2000)))
    after = model.snapshot(6.0)

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        seen = [nodes(app)[0]]
        for _ in range(300):
            await pilot.pause(0.01)
            if nodes(app)[0] != seen[-1]:
                seen.append(nodes(app)[0])
            if len(seen) == 3:
                break
        assert [line.split()[1] for line in seen] == ["UP", "DOWN", "UP"]
        assert "Connection refused" in seen[1]
        assert "2,000" in seen[2]

    drive(steps, feed_of(before, down, after, pause_s=0.3))


def test_the_arrow_keys_and_the_mouse_choose_the_connection_that_is_drawn() -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert title(app) == "Lag of 127.0.0.1:43112"
        await pilot.press("down")
        await pilot.pause()
        assert title(app) == "Lag of 127.0.0.1:43188"
        await pilot.press("down")
        await pilot.pause()
        assert title(app) == "Lag of 127.0.0.1:43188"
        await pilot.click("#connections", offset=(5, 2))
        await pilot.pause()
        assert title(app) == "Lag of 127.0.0.1:43112"

    drive(steps, feed_of(example_snapshot()))


def test_the_choice_survives_new_snapshots_and_goes_with_its_connection() -> None:
    model = ClusterModel([MASTER], interval_s=0.2)
    two = [connection(f"10.0.0.{n}:1", sent=10, ack=10, lag=0) for n in (1, 2)]
    model.observe(Sample(MASTER, at_s=1.0, status=master(10, *two)))
    first = model.snapshot(1.0)

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        app.monitor_screen.show(first)
        await pilot.pause()
        assert title(app) == "Lag of 10.0.0.2:1"
        gone = ClusterModel([MASTER], interval_s=0.2)
        gone.observe(Sample(MASTER, at_s=2.0, status=master(10, two[0])))
        app.monitor_screen.show(gone.snapshot(2.0))
        await pilot.pause()
        assert title(app) == "Lag of 10.0.0.1:1"

    drive(steps, feed_of(first))


def test_many_connections_scroll_with_the_cursor() -> None:
    model = ClusterModel([MASTER], interval_s=0.2)
    crowd = [connection(f"10.0.0.{n}:1", sent=10, ack=10, lag=0) for n in range(60)]
    model.observe(Sample(MASTER, at_s=1.0, status=master(10, *crowd)))

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        table = app.monitor_screen.query_one("#connections", RowTable)
        await pilot.press("end")
        await pilot.pause()
        assert title(app) == "Lag of 10.0.0.59:1"
        bottom = "".join(
            segment.text for segment in table.render_line(table.scrollable_content_region.height - 1)
        )
        assert "10.0.0.59:1" in bottom
        await pilot.press("home")
        await pilot.pause()
        assert table.scroll_offset.y == 0

    drive(steps, feed_of(model.snapshot(1.0)), size=(80, 24))


def test_without_a_slave_the_screen_says_so() -> None:
    model = ClusterModel([SLAVE], interval_s=0.2)
    model.observe(Sample(SLAVE, at_s=1.0, status=slave(10)))

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert connections(app) == []
        assert "No HA connection to draw." in drawn(app)

    drive(steps, feed_of(model.snapshot(1.0)))


def test_plus_and_minus_change_the_time_that_is_drawn() -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert "-2 min" in drawn(app)
        await pilot.press("plus")
        assert "-5 min" in drawn(app)
        await pilot.press("plus", "plus", "plus")
        assert "-15 min" in drawn(app)
        await pilot.press(*["minus"] * 9)
        assert "-30 s" in drawn(app)

    drive(steps, feed_of(example_snapshot()))


def test_help_names_every_key_and_every_column_while_the_monitor_goes_on() -> None:
    snapshot = example_snapshot()

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        app.monitor_screen.show(snapshot)
        await pilot.press("escape")
        assert app.screen is app.monitor_screen
        await pilot.press("question_mark", "q")
        assert app.screen is app.monitor_screen
        assert app.is_running

    drive(steps, feed_of(snapshot))
    named = " ".join(key for key, _ in KEYS).split()
    shown = {"q", "question_mark", "plus,equals_sign", "minus", "t"}
    assert {binding.key for binding in MonitorApp.BINDINGS} == shown
    assert {"q", "?", "+", "-", "t"} <= set(named)


def test_every_binding_has_an_id_of_its_own() -> None:
    ids = [
        binding.id
        for bindings in (MonitorApp.BINDINGS, RowTable.BINDINGS, HelpScreen.BINDINGS)
        for binding in bindings
    ]
    assert all(ids)
    assert len(set(ids)) == len(ids)


def test_t_goes_from_dark_to_light_and_back_and_the_rows_change_colour() -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        table = app.monitor_screen.query_one("#nodes", RowTable)
        dark = [segment.style for segment in table.render_line(1)]
        await pilot.press("t")
        await pilot.pause(0.05)
        assert app.theme == "trioha-light"
        assert [segment.style for segment in table.render_line(1)] != dark
        await pilot.press("t")
        assert app.theme == "trioha-dark"

    drive(steps, feed_of(example_snapshot()))


@pytest.mark.parametrize("theme", ["textual-light", "nord", "ansi-dark", "ansi-light"])
def test_the_themes_of_the_command_palette_work(theme: str) -> None:
    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        app.theme = theme
        await pilot.pause(0.05)
        assert nodes(app)
        assert drawn(app)

    drive(steps, feed_of(example_snapshot()))


def test_names_of_peers_are_text_and_never_markup() -> None:
    model = ClusterModel([MASTER], interval_s=0.2)
    evil = connection("[red]x[/]:[@click=app.quit]1", sent=1, ack=1, lag=0)
    model.observe(Sample(MASTER, at_s=1.0, status=master(1, evil)))

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        assert "[red]x[/]:[@click=app.quit]1" in connections(app)[0]
        assert "[red]x" in app.export_screenshot().replace("&#160;", " ")

    drive(steps, feed_of(model.snapshot(1.0)))


def test_q_quits_with_0_and_stops_the_feed_before_the_widgets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    async def feed(publish: Publish) -> None:
        publish(example_snapshot())
        try:
            await trio.sleep_forever()
        finally:
            order.append("feed ended")

    async def note_unmount(self: App[None], event: Unmount) -> None:
        order.append("app unmounted")

    monkeypatch.setattr(MonitorApp, "on_unmount", note_unmount, raising=False)

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.press("q")
        await pilot.pause()

    app = drive(steps, feed)
    assert order == ["feed ended", "app unmounted"]
    assert (app.return_code, app.failure) == (0, None)


def test_a_feed_that_crashes_ends_the_monitor_with_1_and_says_where() -> None:
    async def feed(publish: Publish) -> None:
        publish(example_snapshot())
        await trio.sleep(0.05)
        raise ZeroDivisionError("boom")

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        for _ in range(300):
            if app.failure is not None:
                break
            await pilot.pause(0.01)

    app = drive(steps, feed)
    assert app.return_code == 1
    assert app.failure is not None
    assert app.failure.startswith("the feed failed: ZeroDivisionError: boom (test_app.py:")


def test_a_feed_that_ends_by_itself_ends_the_monitor_with_1() -> None:
    async def feed(publish: Publish) -> None:
        publish(example_snapshot())

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.pause(0.1)

    app = drive(steps, feed)
    assert (app.return_code, app.failure) == (1, "the feed ended by itself")


def test_a_crash_of_the_screen_stops_the_feed_too() -> None:
    stopped: list[str] = []

    async def feed(publish: Publish) -> None:
        publish(example_snapshot())
        try:
            await trio.sleep_forever()
        finally:
            stopped.append("yes")

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        def broken() -> None:
            raise ZeroDivisionError

        app.call_later(broken)
        await pilot.pause(0.1)

    with pytest.raises(ZeroDivisionError):
        drive(steps, feed)
    assert stopped == ["yes"]


def test_a_fast_feed_does_not_pile_up_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = example_snapshot()
    last = evolve(snapshot, nodes=snapshot.nodes[:1])
    shown: list[Snapshot] = []
    show = MonitorScreen.show

    def count(screen: MonitorScreen, snapshot: Snapshot) -> None:
        shown.append(snapshot)
        show(screen, snapshot)

    monkeypatch.setattr(MonitorScreen, "show", count)

    async def feed(publish: Publish) -> None:
        for _ in range(500):
            publish(snapshot)
        publish(last)
        await trio.sleep_forever()

    async def steps(app: MonitorApp, pilot: Pilot[None]) -> None:
        await pilot.pause(0.1)
        assert len(nodes(app)) == 1

    drive(steps, feed)
    assert shown[-1] is last
    assert len(shown) < 10
