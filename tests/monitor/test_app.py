"""The screens, driven by keys. Sync tests: Textual runs on asyncio, and pytest-trio owns the async ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from attrs import evolve
from rich.text import Text
from textual import events
from textual.pilot import Pilot
from textual.widgets import HelpPanel, Input, KeyPanel, Markdown, Static, Tab
from textual.widgets._footer import FooterKey

from tests.monitor.scenes import (
    END,
    NOW_MS,
    FakePlayback,
    busy_events,
    busy_view,
    calm_view,
    lag_series,
    replica,
)
from trioha.errors import TriohaError
from trioha.replica_verdict import Verdict
from trioha_monitor import screen as screen_module
from trioha_monitor.app import MonitorApp, MonitorError
from trioha_monitor.app import _run as run_application
from trioha_monitor.faults import FaultLog
from trioha_monitor.panes.events import EventsPane
from trioha_monitor.panes.log import LogPane
from trioha_monitor.panes.replicas import ReplicasPane
from trioha_monitor.panes.roles import RolesPane
from trioha_monitor.panes.slave import SlavePane
from trioha_monitor.rendering import ByteUnits
from trioha_monitor.screen import MonitorScreen
from trioha_monitor.view import EventKind, NodeView, TimelineEvent
from trioha_monitor.widgets.dialogs import AskScreen
from trioha_monitor.widgets.footer import KeysFooter
from trioha_monitor.widgets.row_table import Order
from trioha_monitor.widgets.top_bar import ReplayBar, TopBar

Steps = Callable[[MonitorApp, Pilot[None]], Awaitable[None]]


@pytest.fixture(autouse=True)
def _every_view_is_drawn(monkeypatch):
    monkeypatch.setattr(screen_module, "DRAW_PAUSE_S", 0.0)


def feed_of(*views, pause_s=0.0):
    async def feed(show):
        for view in views:
            show(view)
            await trio.sleep(pause_s)
        await trio.sleep_forever()

    return feed


def drive(steps, app=None, *, size=(120, 40)):
    driven = app if isinstance(app, MonitorApp) else MonitorApp(app or feed_of(busy_view()))

    async def run():
        async with driven.run_test(size=size) as pilot:
            make_patient(pilot)
            await settle(driven, pilot)
            await steps(driven, pilot)

    asyncio.run(run())
    return driven


def make_patient(pilot):
    """Pauses last until the application is idle, however slow the machine is."""
    pause = pilot.pause

    async def patient(delay=None):
        await pause(delay)
        await pause()

    setattr(pilot, "pause", patient)  # noqa: B010 - a method, which only tests replace


async def settle(app, pilot):
    """Until a view is on the screen."""
    for _ in range(200):
        await pilot.pause(0.01)
        if replicas(app).nodes.lines or not app.is_running:
            return
    raise AssertionError("no view came")


def replicas(app):
    return app.monitor_screen.query_one(ReplicasPane)


def rows(app):
    return replicas(app).table.lines


def top(app):
    """The first line of the screen, as it is drawn."""
    bar = app.monitor_screen.query_one(TopBar)
    cells = [" "] * bar.size.width
    for widget in (bar.query_one("#top-name"), *bar.tabs.query(Tab), bar.summary):
        if widget.display and widget.region:
            start = widget.region.x - 1
            cells[start : start + widget.region.width] = widget.render_line(0).text
    return "".join(cells)


def title(widget):
    return Text.from_markup(str(widget.border_title or "")).plain


def pane(app):
    return app.monitor_screen.pane.id


def test_a_row_for_every_node_and_every_replica():
    async def steps(app, pilot):
        up, slave_row, stuck, down = replicas(app).nodes.lines
        assert up.split()[:6] == ["●", "UP", "1h", "SYNC_MASTER", "broker-a", "#0"]
        assert slave_row.endswith("← 127.0.0.1:10912 196,933,333")
        assert "✗ GAP: 50000000 is deleted" in stuck
        assert down.startswith("✗ DOWN 10s")
        assert "Connection refused" in down
        assert [line.split("  ")[0] for line in rows(app)] == [
            "● OK", "▲ FALL BEHIND", "△ NOT IN SYNC", "○ OBSERVER", "■ STALLED", "✗ SILENT 31s",
            "▼ GAP: below min", "◐ STALE 10s", "≠ DIVERGED",
        ]  # fmt: skip
        assert "not closing" in rows(app)[1]
        assert "in 1m 33s" in rows(app)[2]

    drive(steps)


def test_every_line_fits_and_the_essential_columns_are_there_at_any_width():
    async def steps(app, pilot):
        table = replicas(app).table
        every = {column.key for column in table.columns}
        for size in ((200, 50), (120, 40), (80, 24), (200, 50)):
            await pilot.resize_terminal(*size)
            for key, pane_table, essential in (
                ("3", app.monitor_screen.query_one(LogPane).table, {"health", "name", "max", "rate"}),
                ("4", app.monitor_screen.query_one(EventsPane).table, {"time", "kind", "about", "text"}),
                ("1", table, {"verdict", "slave", "diff", "lag", "history"}),
            ):
                await pilot.press(key)
                await pilot.pause(0.05)
                assert essential <= set(pane_table.shown_columns)
                width = pane_table.scrollable_content_region.width
                assert all(Text(line).cell_len <= width for line in pane_table.lines)
                assert pane_table.scrollable_content_region.height >= 3
            assert len(top(app)) == size[0] - 2
            assert (set(table.shown_columns) == every) == (size == (200, 50))

    drive(steps, size=(200, 50))


@pytest.mark.parametrize(
    ("width", "line", "keys"),
    [
        (80, "1 Replicas 2 Slave 3 Log 4 Events 5 Groups  ✗ 5 bad ▲ 4 warn", "oSort lLag in s"),
        (60, "1 Replicas 2 3 4 5  ✗ 5 bad ▲ 4 warn", "oSort lLag in s spacePause /Filter ?Help qQuit"),
        (40, "1 Replicas  ✗ 5 bad ▲ 4 warn  03:04:05", "oSort lLag in s ?Help qQuit"),
        (32, "1 Replicas  ✗ 5 bad ▲ 4 warn", "oSort lLag in s ?Help qQuit"),
    ],
)
def test_the_summary_stays_at_any_width_and_hints_go(width, line, keys, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    async def steps(app, pilot):
        await pilot.pause(0.05)
        assert top(app).startswith(line)
        assert len(top(app)) == width - 2
        footer = app.monitor_screen.query_one(KeysFooter)
        shown = [f"{key.key_display}{key.description}" for key in footer.query(FooterKey)]
        assert " ".join(shown).startswith(keys)
        assert shown[-2:] == ["?Help", "qQuit"]
        assert all(key.region.right <= width for key in footer.query(FooterKey))

    drive(steps, size=(width, 24))


def test_a_line_that_is_cut_off_says_so():
    async def steps(app, pilot):
        await pilot.press("2")
        await pilot.pause(0.05)
        facts = app.monitor_screen.query_one(SlavePane).facts
        acks = next(y for y, line in enumerate(facts.lines) if line.startswith("Ack time"))
        assert (
            facts.render_line(acks).text.rstrip()
            == "Ack time  p50 0.31 ms  p99 2.40 ms  max 18.0 ms  of 182,3…"
        )

    drive(steps, size=(60, 24))


def test_histories_are_kept_of_the_replicas_that_are_shown():
    views = [evolve(calm_view(NOW_MS + key), replicas=(replica(key, Verdict.OK),)) for key in range(1, 40)]

    async def steps(app, pilot):
        while app.monitor_screen.view != views[-1]:
            await pilot.pause(0.01)
        await pilot.pause(0.05)
        assert list(replicas(app)._sparklines) == [39]

    drive(steps, feed_of(*views, pause_s=0.02))


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (busy_view(), "3 nodes report no controllers: roles are as brokerRole says"),
        (evolve(calm_view(), nodes=(NodeView("127.0.0.1:10911"),)), "No node has answered"),
    ],
)
def test_without_a_broker_in_controller_mode_the_roles_screen_says_why_it_is_empty(view, why):
    async def steps(app, pilot):
        await pilot.press("6")
        await pilot.pause(0.05)
        roles = app.monitor_screen.query_one(RolesPane)
        assert title(roles.facts) == "No broker in controller mode"
        assert " ".join(roles.facts.lines).startswith(why)
        assert not roles.chart.display

    drive(steps, feed_of(view))


@pytest.mark.full
def test_a_terminal_of_any_size_is_drawn():
    app = MonitorApp(feed_of(busy_view()), playback=FakePlayback())
    keys = ("question_mark", "escape", "down", "plus", "t", "2", "3", "4", "slash", "x", "escape")

    async def run():
        async with app.run_test(size=(1, 1)) as pilot:
            await pilot.pause(0.1)
            for size in ((1, 1), (12, 4), (40, 10), (300, 8)):
                await pilot.resize_terminal(*size)
                await pilot.press(*keys)
            await pilot.resize_terminal(120, 40)
            await pilot.press("1")
            await pilot.pause(0.05)
            assert rows(app)

    asyncio.run(run())
    assert app.failure is None


def test_each_screen_has_a_key_and_a_name_to_click():
    async def steps(app, pilot):
        for key, name in (
            ("2", "slave"),
            ("3", "log"),
            ("4", "events"),
            ("5", "groups"),
            ("1", "replicas"),
        ):
            await pilot.press(key)
            assert pane(app) == name
        await pilot.click("#top", offset=(top(app).index("Log") + 1, 0))
        assert pane(app) == "log"

    drive(steps)


def test_the_chosen_replica_is_drawn_and_opened():
    async def steps(app, pilot):
        assert title(replicas(app).graph) == "Lag of broker-a #1"
        await pilot.press("down")
        await pilot.pause(0.02)
        assert title(replicas(app).graph).startswith(
            "Lag of 127.0.0.1:43112 · lacks bytes that are 4.2 s old"
        )
        await pilot.press("enter")
        await pilot.pause(0.05)
        assert pane(app) == "slave"
        slave = app.monitor_screen.query_one(SlavePane)
        assert title(slave.facts) == "127.0.0.1:43112"
        assert "▲ FALL BEHIND" in slave.facts.lines[0]
        assert title(slave.graph).startswith("Lag of 127.0.0.1:43112")
        await pilot.press("right", "1")
        await pilot.pause(0.05)
        assert replicas(app).table.cursor == 3
        await pilot.press("2", "left", "left")
        await pilot.pause(0.05)
        assert title(slave.facts) == "broker-a #1"
        assert "p50 0.31 ms  p99 2.40 ms" in "\n".join(slave.facts.lines)
        assert slave.ladder.lines[2].split()[:3] == ["acked", "196,933,333", "-59.8"]

    drive(steps)


def test_the_mouse_chooses_a_row_opens_it_and_sorts_by_a_label():
    async def steps(app, pilot):
        table = replicas(app).table
        await pilot.click("#replicas-table", offset=(5, 4))
        assert table.cursor == 3
        diff = table.render_line(0).text.index("Diff")
        await pilot.click("#replicas-table", offset=(2 + diff, 1))
        assert table.order.key == "diff"
        assert [row.key for row in table.rows][:2] == [9, 1]
        await pilot.click("#replicas-table", offset=(2 + diff, 1))
        assert table.rows[0].key == 3
        await pilot.click("#replicas-table", offset=(5, 2), times=2)
        await pilot.pause(0.05)
        assert (pane(app), app.monitor_screen.query_one(SlavePane).facts.lines[0].split()[1]) == (
            "slave",
            "△",
        )

    drive(steps)


def test_o_sorts_by_one_column_after_the_other_and_shift_o_turns():
    async def steps(app, pilot):
        table = replicas(app).table
        await pilot.press("o")
        assert (table.order.key, table.rows[0].verdict.severity) == ("verdict", 3)
        assert "by Verdict ↑" in title(table)
        await pilot.press("O")
        assert table.rows[0].verdict.severity < 2
        keys = [column.key for column in table.columns if column.order and column.key in table.shown_columns]
        await pilot.press(*["o"] * len(keys))
        assert table.order.key is None

    drive(steps)


def test_rows_change_places_once_a_second_at_most():
    async def steps(app, pilot):
        table = replicas(app).table
        table.order = Order("diff", is_descending=True)
        view = app.monitor_screen.view
        before = [row.key for row in table.rows]
        grown = evolve(view.replicas[0], diff_bytes=2 * END)
        for later_ms, expected in ((500, before), (1600, [1, *[key for key in before if key != 1]])):
            app.monitor_screen.show(
                evolve(view, time_ms=NOW_MS + later_ms, replicas=(grown, *view.replicas[1:]))
            )
            assert [row.key for row in table.rows] == expected
        assert rows(app)[0].startswith("● OK")

    drive(steps)


def test_the_filter_shows_rows_with_all_words_and_escape_drops_it():
    async def steps(app, pilot):
        await pilot.press("slash", *"SYNC not")
        assert [row.key for row in replicas(app).table.rows] == [3]
        assert "1 of 9 with “SYNC not”" in title(replicas(app).table)
        await pilot.press("enter")
        await pilot.pause(0.02)
        assert not app.monitor_screen.query_one("#filter", Input).display
        assert replicas(app).table.has_focus
        assert title(replicas(app).graph).startswith("Lag of 127.0.0.1:43113")
        await pilot.press("slash", "escape")
        assert len(rows(app)) == 9

    drive(steps)


def burst(app, *keys):
    """Keys all at once, as a terminal sends pasted ones or ones typed while it was busy."""
    for key in keys:
        character = {"slash": "/", "enter": "\r", "backspace": None}.get(key, key)
        app.post_message(events.Key(key, character))


def test_a_key_that_opens_a_line_gives_it_the_keys_that_come_at_once():
    playback = FakePlayback()

    async def steps(app, pilot):
        app.post_message(events.Paste("/127.0.0.1:43113\nmore"))
        await pilot.pause(0.05)
        assert [row.address for row in replicas(app).table.rows] == ["127.0.0.1:43113"]
        assert app.monitor_screen.query_one("#filter", Input).has_focus
        await pilot.press("escape")
        burst(app, "4", "slash", *"refused", "enter", "1", "u")
        await pilot.pause(0.1)
        assert (pane(app), app.monitor_screen.units) == ("replicas", ByteUnits.DECIMAL)
        assert app.monitor_screen.query_one(EventsPane).table.filter_text == "refused"
        assert not app.monitor_screen.query_one("#filter", Input).display
        for opens, condition in (("f", "event"), ("g", "50%")):
            burst(app, opens, *condition, "enter")
            await pilot.pause(0.1)
        assert playback.told == [("until", "event"), ("until", "50%")]
        assert app.screen is app.monitor_screen

    drive(steps, MonitorApp(feed_of(busy_view()), playback=playback))


@pytest.mark.full
def test_the_whole_text_of_the_chosen_event_fits_a_small_terminal():
    async def steps(app, pilot):
        await pilot.press("4")
        await pilot.pause(0.05)
        events_pane = app.monitor_screen.query_one(EventsPane)
        for event in reversed(busy_events()):
            words = " ".join(events_pane.chosen.lines)
            assert event.text in words
            assert (event.replica or event.node) in words
            assert len(events_pane.chosen.lines) <= events_pane.chosen.size.height
            await pilot.press("down")
            await pilot.pause(0.02)

    drive(steps, size=(80, 24))


def test_l_shows_seconds_where_there_is_room_for_one_graph():
    async def steps(app, pilot):
        await pilot.press("2")
        await pilot.pause(0.05)
        slave = app.monitor_screen.query_one(SlavePane)
        assert (slave.graph.display, slave.graph.size.height > 0, slave.seconds_graph.size.height) == (
            True,
            True,
            0,
        )
        await pilot.press("l")
        await pilot.pause(0.05)
        assert (slave.graph.size.height, slave.seconds_graph.size.height > 0) == (0, True)
        assert "0 s └" in "\n".join(slave.seconds_graph.lines)

    drive(steps, size=(80, 24))


def test_a_long_reason_of_a_verdict_is_wrapped():
    why = "wants 100, and the log of its master begins at 65536 since files were deleted by age, as is said"
    lost = replica(1, Verdict.GAP, label="broker-a #1", why=why)

    async def steps(app, pilot):
        await pilot.press("2")
        await pilot.pause(0.05)
        lines = app.monitor_screen.query_one(SlavePane).facts.lines
        assert lines[0].split() == ["Verdict", "▼", "GAP:", "below", "min"]
        assert " ".join(line.strip() for line in lines[1:3]) == why

    drive(steps, feed_of(evolve(calm_view(), replicas=(lost,))), size=(80, 24))


def test_events_are_newest_first_and_can_be_filtered():
    async def steps(app, pilot):
        await pilot.press("4")
        await pilot.pause(0.05)
        table = app.monitor_screen.query_one(EventsPane).table
        assert [row.number for row in table.rows] == list(range(12, 0, -1))
        await pilot.press("slash", *"refused 10.0.0.66")
        assert ["a forged ack" in line for line in table.lines] == [True]
        await pilot.press("escape")
        assert len(table.rows) == 12
        assert table.cursor == 12
        view = app.monitor_screen.view
        event = TimelineEvent(NOW_MS, EventKind.MARK, "", "", "new", number=13)
        app.monitor_screen.show(evolve(view, events=(*view.events, event)))
        assert (table.cursor, table.rows[0].number) == (13, 13)
        await pilot.press("down")
        app.monitor_screen.show(evolve(view, events=(*view.events, event, evolve(event, number=14))))
        assert (table.cursor, table.rows[0].number) == (12, 14)

    drive(steps)


def test_the_log_screen_shows_the_chosen_log_in_depth():
    async def steps(app, pilot):
        await pilot.press("3")
        await pilot.pause(0.05)
        log = app.monitor_screen.query_one(LogPane)
        facts = "\n".join(log.facts.lines)
        assert "67,108,864 to 196,994,567" in facts
        assert "✗ FLUSH_SLAVE_TIMEOUT 12  3/s" in facts
        assert "files go after 3d 00h" in facts
        assert "62% of 75%" in facts
        await pilot.press("down")
        await pilot.pause(0.05)
        assert title(log.facts) == "broker-a #1"
        assert "81%" in "\n".join(log.facts.lines)

    drive(steps)


def test_space_holds_the_tables_while_graphs_go_on():
    later = evolve(
        calm_view(NOW_MS + 5000),
        replicas=(
            replica(1, Verdict.STALLED, label="broker-a #1", diff_bytes=777, lag_history=lag_series("lost")),
        ),
    )

    async def steps(app, pilot):
        await pilot.press("space")
        app.monitor_screen.show(later)
        await pilot.pause(0.02)
        assert rows(app)[0].startswith("● OK")
        assert "PAUSED 5s" in top(app)
        assert "now 777 B" in str(replicas(app).graph.border_subtitle)
        await pilot.press("space")
        await pilot.pause(0.02)
        assert rows(app)[0].startswith("■ STALLED")
        assert "PAUSED" not in top(app)

    drive(steps, feed_of(calm_view()))


def test_keys_change_units_copy_the_table_save_a_picture_and_change_the_time_that_is_drawn(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    copied = tmp_path / "state" / "trioha" / "ha-status.txt"

    async def steps(app, pilot):
        for said in ("59.8 KiB", "61.2 kB", "61,234 B", "59.8 KiB"):
            assert said in rows(app)[0]
            await pilot.press("u")
        # As mqadmin prints it.
        await pilot.press("c")
        assert app.clipboard == copied.read_text()
        assert app.clipboard.startswith(
            "\n#MasterAddr\t127.0.0.1:10911\n#MasterCommitLogMaxOffset\t196994567\n#SlaveNum\t7\n"
        )
        assert "Fall Behind" in app.clipboard
        # A terminal may ignore the text: the file is named, and no copy is claimed.
        (said,) = (notice for notice in app._notifications if notice.title == "Written")
        assert said.message.startswith(f"9 replicas as mqadmin haStatus prints them, in {copied};")
        await pilot.press("s")
        for keys, span in (
            ([], "-2 min"),
            (["plus"], "-5 min"),
            (["plus"] * 3, "-15 min"),
            (["minus"] * 9, "-30 s"),
        ):
            await pilot.press(*keys)
            assert span in replicas(app).graph.lines[-1]
        assert "Lag 30 s" in replicas(app).table.render_line(0).text

    drive(steps)
    (picture,) = tmp_path.glob("trioha-monitor-*.svg")
    assert "SYNC_MASTER" in picture.read_text()


def test_l_draws_lag_in_seconds_with_the_limits_of_the_broker():
    async def steps(app, pilot):
        assert "haMaxGapNotInSync 256 MiB" in "\n".join(replicas(app).graph.lines)
        await pilot.press("l")
        assert "slaveTimeout 3.0 s ╌" in "\n".join(replicas(app).graph.lines)
        assert "0 s └" in "\n".join(replicas(app).graph.lines)

    drive(steps)


def help_texts(app):
    """The text of the help on the pane, and the keys that it lists."""
    panel = app.screen.query_one(HelpPanel)
    table = panel.query_one(KeyPanel).query_one(Static).render()
    return panel.query_one(Markdown).source, " ".join(map(str, table.columns[0].cells)).split()


@pytest.mark.full
def test_help_is_of_the_visible_pane_and_lists_its_keys():
    async def steps(app, pilot):
        await pilot.press("question_mark")
        for key, heading, term in (("1", "Verdicts", "▼ GAP: below min"), ("4", "Events", "Kind")):
            await pilot.press(key)
            await pilot.pause(0.05)
            text, keys = help_texts(app)
            assert {"1", "2", "3", "4", "space", "/", "+", "-", "u", "c", "s", "t", "q", "?", "o"} <= {*keys}
            assert "[" not in keys
            assert f"#### {heading}\n" in text
            assert f"- **{term}** " in text
        panel = app.screen.query_one(HelpPanel)
        await pilot.press("pagedown")
        await pilot.pause(0.05)
        assert panel.scroll_offset.y > 0
        for closes in ("escape", "q", "question_mark"):
            await pilot.press(closes)
            await pilot.pause(0.05)
            assert not app.screen.query(HelpPanel)
            await pilot.press("question_mark")
            await pilot.pause(0.05)

    drive(steps, size=(80, 24))


def test_the_command_palette_has_every_key_by_name():
    async def steps(app, pilot):
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        assert {"Log (3)", "Pause (space)", "Copy (c)", "Picture (s)", "Sort (o)"} <= set(commands)
        result = commands["Log (3)"].callback()
        if result is not None:
            await result
        assert pane(app) == "log"

    drive(steps)


def test_t_goes_from_dark_to_light_and_back_and_the_rows_change_colour():
    async def steps(app, pilot):
        table = replicas(app).nodes
        dark = [segment.style for segment in table.render_line(1)]
        await pilot.press("t")
        await pilot.pause(0.05)
        assert app.theme == "trioha-light"
        assert [segment.style for segment in table.render_line(1)] != dark
        await pilot.press("t")
        await pilot.pause(0.05)
        assert [segment.style for segment in table.render_line(1)] == dark

    drive(steps)


@pytest.mark.full
def test_the_themes_of_the_command_palette_work():
    async def steps(app, pilot):
        for theme in ("textual-light", "nord", "ansi-dark", "ansi-light"):
            app.theme = theme
            for key in "4321":
                await pilot.press(key)
                await pilot.pause(0.05)
            assert rows(app)

    drive(steps)


def test_names_of_peers_are_text_and_never_markup():
    evil = replica(1, Verdict.OK, label="[red]x[/]:[@click=app.quit]1")

    async def steps(app, pilot):
        assert "[red]x[/]:[@click=app.quit]1" in rows(app)[0]
        for key in "12":
            await pilot.press(key)
            await pilot.pause(0.05)
            assert "[red]x" in app.export_screenshot().replace("&#160;", " ")

    drive(steps, feed_of(evolve(calm_view(), replicas=(evil,))))


def test_new_figures_redraw_only_the_cells_that_differ():
    async def steps(app, pilot):
        view = app.monitor_screen.view
        await pilot.pause(0.05)
        table = replicas(app).table
        table._dirty_regions.clear()
        changed = evolve(view.replicas[1], lag_s=4.3)
        app.monitor_screen.show(evolve(view, replicas=(view.replicas[0], changed, *view.replicas[2:])))
        (region,) = table._dirty_regions
        assert (region.height, region.width) == (1, 6)

    drive(steps)


def test_many_replicas_scroll_with_the_cursor():
    crowd = tuple(replica(n, Verdict.OK, label=f"broker-{n:02d}") for n in range(60))

    async def steps(app, pilot):
        table = replicas(app).table
        await pilot.press("end")
        await pilot.pause(0.05)
        assert title(replicas(app).graph).startswith("Lag of broker-59")
        assert "broker-59" in table.render_line(table.scrollable_content_region.height - 1).text
        await pilot.press("home")
        await pilot.pause(0.05)
        assert "broker-00" in table.render_line(1).text

    drive(steps, feed_of(evolve(calm_view(), replicas=crowd)), size=(80, 24))


def test_every_pane_shows_that_there_is_no_replica():
    async def steps(app, pilot):
        assert rows(app) == []
        assert "No replica to draw." in replicas(app).graph.lines[0]
        await pilot.press("2")
        await pilot.pause(0.05)
        assert "No replica is known." in app.monitor_screen.query_one(SlavePane).facts.lines[0]

    drive(steps, feed_of(evolve(calm_view(), replicas=())))


def test_keys_of_a_replay_steer_it_and_are_inactive_live():
    playback = FakePlayback()

    async def steps(app, pilot):
        await pilot.press("space", "]", "[", "b", ".", ",", "n", "N")
        assert playback.told == [
            "toggle",
            ("speed", 1),
            ("speed", -1),
            "turn",
            ("step", 1),
            ("step", -1),
            ("event", 1),
            ("event", -1),
        ]
        playback.told.clear()
        bar = app.monitor_screen.query_one(ReplayBar)
        assert "▌▌ 4x" in bar.lines[0]
        assert "4m 00s of 5m 00s" in bar.lines[0]
        assert bar.lines[2].count("┷") >= 8
        await pilot.click("#replay", offset=(1, 2))
        assert playback.told == [("seek", playback.now.start_ms)]

    drive(steps, MonitorApp(feed_of(busy_view()), playback=playback))

    async def live(app, pilot):
        await pilot.press("]", "b", ".", "n", "g", "f")
        assert app.screen is app.monitor_screen

    drive(live)


def test_all_clocks_of_a_replay_show_the_moment_of_its_figures():
    playback = FakePlayback()

    async def steps(app, pilot):
        # It plays fast: its position is a minute later by now.
        playback.now = evolve(playback.now, time_ms=playback.now.time_ms + 60_000)
        app.monitor_screen.show(calm_view(NOW_MS + 5000))
        bar = app.monitor_screen.query_one(ReplayBar)
        clock = top(app).split()[-1]
        assert f" {clock}." in bar.lines[0]
        assert "4m 05s of 5m 00s" in bar.lines[0]

    drive(steps, MonitorApp(feed_of(busy_view()), playback=playback))


def test_a_replay_goes_to_an_event_a_moment_or_a_condition():
    playback = FakePlayback()

    async def steps(app, pilot):
        await pilot.press("question_mark")
        await pilot.pause(0.05)
        _, keys = help_texts(app)
        assert {"space", "[", "]", "b", ".", ",", "n", "N", "g", "f"} <= {*keys}
        assert "r" not in keys
        await pilot.press("escape", "4")
        await pilot.pause(0.05)
        await pilot.press("down", "enter")
        assert playback.told == [("seek", busy_events()[-2].time_ms)]
        await pilot.press("g", *"noon", "enter")
        assert isinstance(app.screen, AskScreen)
        assert playback.told[1:] == []
        await pilot.press(*["backspace"] * 4, *"50%", "enter")
        assert app.screen is app.monitor_screen
        assert playback.told[1:] == [("until", "50%")]
        await pilot.press("f", *"lag > 10 MiB", "enter")
        assert playback.told[2:] == [("until", "lag > 10 MiB")]
        await pilot.press("f", "escape")
        assert app.screen is app.monitor_screen

    drive(steps, MonitorApp(feed_of(busy_view()), playback=playback))


class FakeRecording:
    def __init__(self, *, fails=False):
        self.stopped = 0
        self.fails = fails

    def start(self):
        if self.fails:
            raise TriohaError("no room")
        return Path("here")

    def stop(self):
        self.stopped += 1
        return Path("here")


def test_r_starts_and_stops_a_recording_and_quitting_stops_it_too():
    recording = FakeRecording()

    async def steps(app, pilot):
        app.monitor_screen.show(calm_view())
        await pilot.press("r")
        await app.workers.wait_for_complete()
        app.monitor_screen.show(calm_view(NOW_MS + 2000))
        assert "● REC 2s" in top(app)
        await pilot.press("r")
        await app.workers.wait_for_complete()
        assert recording.stopped == 1
        assert "REC" not in top(app)
        await pilot.press("r", "q")

    drive(steps, MonitorApp(feed_of(calm_view()), recording=recording))
    assert recording.stopped == 2

    async def in_vain(app, pilot):
        await pilot.press("r")
        await app.workers.wait_for_complete()
        app.monitor_screen.show(calm_view(NOW_MS + 2000))
        assert "REC" not in top(app)

    drive(in_vain, MonitorApp(feed_of(calm_view()), recording=FakeRecording(fails=True)))


def test_a_recording_that_cannot_be_completed_at_the_end_is_a_failure():
    recording = FakeRecording()

    def stop():
        raise TriohaError("the disk is full")

    recording.stop = stop

    async def steps(app, pilot):
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.press("q")

    app = drive(steps, MonitorApp(feed_of(calm_view()), recording=recording))
    assert app.failure == "the recording is not complete: the disk is full"


def test_a_slow_disk_at_the_start_of_a_recording_does_not_block_the_screen():
    recording = FakeRecording()
    may_start = threading.Event()
    start = recording.start

    def start_late():
        assert may_start.wait(60)
        return start()

    recording.start = start_late

    async def steps(app, pilot):
        await pilot.press("r", "r", "3")
        assert pane(app) == "log"
        app.monitor_screen.show(calm_view(NOW_MS + 1000))
        assert "REC" not in top(app)
        may_start.set()
        await app.workers.wait_for_complete()
        app.monitor_screen.show(calm_view(NOW_MS + 2000))
        assert "● REC 1s" in top(app)

    drive(steps, MonitorApp(feed_of(calm_view()), recording=recording))
    assert recording.stopped == 1


def test_q_quits_with_0_and_the_feed_ends_before_the_loop():
    ended = []

    async def feed(show):
        show(busy_view())
        try:
            await trio.sleep_forever()
        finally:
            # A view that comes while the widgets go.
            show(calm_view())
            ended.append(asyncio.get_running_loop().is_running())

    async def steps(app, pilot):
        await pilot.press("q")
        await pilot.pause()

    app = drive(steps, feed)
    assert ended == [True]
    assert (app.return_code, app.failure) == (0, None)


def test_the_traceback_of_a_crash_is_written_and_its_path_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(FaultLog, "capture_logs", lambda _log: None)

    async def feed(show):
        show(busy_view())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_deep_down, 3)

    async def fails_deep_down(levels):
        if not levels:
            raise ZeroDivisionError("boom")
        await fails_deep_down(levels - 1)

    async def steps(app, pilot):
        while app.failure is None:
            await pilot.pause(0.01)

    app = drive(steps, feed)
    assert app.return_code == 1
    monkeypatch.setattr(app, "run", lambda: None)
    with pytest.raises(MonitorError) as raised:
        run_application(app)
    path = tmp_path / "trioha" / "monitor.log"
    first, last = str(raised.value).splitlines()
    assert first.startswith("monitor: the feed failed: ZeroDivisionError: boom (test_app.py:")
    assert last == f"traceback in {path}"
    kept = path.read_text()
    assert kept.count("in fails_deep_down") == 4
    assert kept.rstrip().endswith("ZeroDivisionError: boom\n    +------------------------------------")


def test_a_crash_of_the_screen_is_written_and_stops_the_feed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(FaultLog, "capture_logs", lambda _log: None)
    stopped = []

    async def feed(show):
        show(busy_view())
        try:
            await trio.sleep_forever()
        finally:
            stopped.append("yes")

    async def steps(app, pilot):
        def broken():
            raise ZeroDivisionError("drawn")

        app.call_later(broken)
        await pilot.pause(0.1)

    app = MonitorApp(feed)
    with pytest.raises(ZeroDivisionError):
        drive(steps, app)
    assert stopped == ["yes"]
    monkeypatch.setattr(app, "run", lambda: None)
    with pytest.raises(MonitorError, match="the screen failed: ZeroDivisionError: drawn"):
        run_application(app)
    assert "in broken" in (tmp_path / "trioha" / "monitor.log").read_text()


def test_a_traceback_that_cannot_be_written_is_printed(tmp_path, monkeypatch, capsys):
    (tmp_path / "trioha").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(FaultLog, "capture_logs", lambda _log: None)
    app = MonitorApp(feed_of(busy_view()))
    app.failure, app.crash = "the feed failed", ZeroDivisionError("boom")
    monkeypatch.setattr(app, "run", lambda: None)
    with pytest.raises(MonitorError, match=r"^monitor: the feed failed$"):
        run_application(app)
    assert "ZeroDivisionError: boom" in capsys.readouterr().err


def test_a_feed_that_ends_by_itself_ends_the_monitor_with_1():
    async def feed(show):
        show(busy_view())

    async def steps(app, pilot):
        await pilot.pause(0.1)

    app = drive(steps, feed)
    assert (app.return_code, app.failure) == (1, "the feed ended by itself")


def test_views_that_come_fast_are_drawn_later_and_the_last_one_always(monkeypatch):
    monkeypatch.setattr(screen_module, "DRAW_PAUSE_S", 0.05)
    drawn = []
    redraw = MonitorScreen.redraw

    def count(screen):
        drawn.append(screen.view)
        redraw(screen)

    async def steps(app, pilot):
        await pilot.pause(0.2)
        monkeypatch.setattr(screen_module, "monotonic", lambda: 1e9)
        monkeypatch.setattr(MonitorScreen, "redraw", count)
        views = [calm_view(NOW_MS + n) for n in range(5)]
        for view in views:
            app.monitor_screen.show(view)
        while len(drawn) < 2:
            await pilot.pause(0.01)
        assert drawn == [views[0], views[4]]

    drive(steps)


def test_a_fast_feed_does_not_pile_up_views(monkeypatch):
    view = busy_view()
    last = evolve(view, nodes=view.nodes[:1])
    shown = []
    show_it = MonitorScreen.show

    def count(screen, view):
        shown.append(view)
        show_it(screen, view)

    monkeypatch.setattr(MonitorScreen, "show", count)

    async def feed(show):
        for _ in range(500):
            show(view)
        show(last)
        await trio.sleep_forever()

    async def steps(app, pilot):
        await pilot.pause(0.1)
        assert len(replicas(app).nodes.lines) == 1

    drive(steps, feed)
    assert shown[-1] is last
    assert len(shown) < 10
