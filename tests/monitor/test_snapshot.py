"""What the screens look like, cell by cell. `pytest --snapshot-update` takes new pictures: look at them."""

import time

import pytest
import trio
from attrs import evolve
from textual.widgets import HelpPanel

from tests.monitor.recorded_group import write_group
from tests.monitor.scenes import FakePlayback, busy_view, controlled_view
from tests.sessions.sessions import WALL_NS
from trioha_monitor.app import MonitorApp
from trioha_monitor.rendering import LIGHT
from trioha_monitor.replay import open_replay

SCREENS = {"replicas": "1", "slave": "2", "log": "3", "events": "4", "groups": "5", "roles": "6"}
BASE, SMALL, LARGE = (120, 40), (80, 24), (200, 50)


def case(screen, size=BASE, *, full=True):
    """A picture of a screen."""
    marks = [pytest.mark.full] if full else []
    return pytest.param(screen, size, id=f"{screen}-{size[0]}x{size[1]}", marks=marks)


@pytest.fixture(autouse=True)
def _utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def feed(show):
    show(busy_view())
    await trio.sleep_forever()


async def feed_of_sessions(show):
    # Recorded sessions have no groups and no copies of metadata.
    view = busy_view()
    replicas = tuple(evolve(replica, metadata=None) for replica in view.replicas)
    show(evolve(view, replicas=replicas, consumption=None, is_live=False))
    await trio.sleep_forever()


def until_shown(*keys):
    async def run(pilot):
        assert isinstance(pilot.app, MonitorApp)
        while pilot.app.monitor_screen.view is None:
            await pilot.pause(0.01)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.05)
        while pilot.app.screen.query(HelpPanel) and not pilot.app.screen.query("MarkdownBullet"):
            await pilot.pause(0.01)
        # The panes are laid out beside the help, then drawn for their new size, then columns are fitted.
        for _ in range(5):
            await pilot.pause(0.1)

    return run


@pytest.mark.parametrize(
    ("screen", "size"),
    [
        case("replicas", full=False),
        case("replicas", SMALL),
        case("replicas", LARGE),
        case("slave"),
        case("log", full=False),
        case("events"),
        case("groups"),
    ],
)
def test_screen(screen, size, snap_compare):
    assert snap_compare(MonitorApp(feed), terminal_size=size, run_before=until_shown(SCREENS[screen]))


@pytest.mark.full
def test_screen_of_a_replay(snap_compare):
    app = MonitorApp(feed_of_sessions, playback=FakePlayback())
    assert snap_compare(app, terminal_size=BASE, run_before=until_shown("1"))


async def controlled_feed(show):
    show(controlled_view())
    await trio.sleep_forever()


@pytest.mark.parametrize(
    ("screen", "size"),
    [case("replicas"), case("log"), case("roles", full=False), case("roles", SMALL), case("roles", LARGE)],
)
def test_controller_mode(screen, size, snap_compare):
    app = MonitorApp(controlled_feed)
    assert snap_compare(app, terminal_size=size, run_before=until_shown(SCREENS[screen]))


@pytest.mark.full
def test_controller_mode_in_a_replay(tmp_path, snap_compare):
    """Of recorded sessions, 18 s after the first master has come back."""
    source = open_replay([write_group(tmp_path)])
    while source.work(for_s=1.0):
        pass
    source.seek(WALL_NS // 1_000_000 + 100_000)
    app = MonitorApp(source, playback=source)
    assert snap_compare(app, terminal_size=BASE, run_before=until_shown("6"))


@pytest.mark.full
def test_help_on_roles(snap_compare):
    app = MonitorApp(controlled_feed)
    assert snap_compare(app, terminal_size=(100, 60), run_before=until_shown("6", "question_mark"))


@pytest.mark.full
def test_the_light_theme(snap_compare):
    app = MonitorApp(feed)

    async def run(pilot):
        app.theme = LIGHT.name
        await until_shown("l")(pilot)

    assert snap_compare(app, terminal_size=BASE, run_before=run)


@pytest.mark.full
def test_help(snap_compare):
    assert snap_compare(MonitorApp(feed), terminal_size=(100, 60), run_before=until_shown("question_mark"))
