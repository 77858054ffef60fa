"""What the screens look like, cell by cell. `pytest --snapshot-update` takes new pictures: look at them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
from attrs import evolve
from textual.pilot import Pilot

from tests.monitor.recorded_group import write_group
from tests.monitor.scenes import FakePlayback, busy_view, controlled_view
from tests.recording.sessions import WALL_NS
from trioha_monitor.app import MonitorApp
from trioha_monitor.rendering import LIGHT
from trioha_monitor.replay import open_replay
from trioha_monitor.view import Show

SIZES = [(80, 24), (120, 40), (200, 50)]
SCREENS = {"replicas": "1", "slave": "2", "log": "3", "events": "4", "groups": "5"}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


async def feed(show: Show) -> None:
    show(busy_view())
    await trio.sleep_forever()


async def feed_of_sessions(show: Show) -> None:
    # Recorded sessions have no groups and no copies of metadata.
    view = busy_view()
    replicas = tuple(evolve(replica, metadata=None) for replica in view.replicas)
    show(evolve(view, replicas=replicas, consumption=None, is_live=False))
    await trio.sleep_forever()


@pytest.fixture(scope="module")
def recorded_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_group(tmp_path_factory.mktemp("group"))


def until_shown(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def run(pilot: Pilot[None]) -> None:
        assert isinstance(pilot.app, MonitorApp)
        while pilot.app.monitor_screen.view is None:
            await pilot.pause(0.01)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.05)
        await pilot.pause(0.1)

    return run


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("source", ["live", "replay"])
def test_screen(source: str, screen: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    app = MonitorApp(feed_of_sessions, playback=FakePlayback()) if source == "replay" else MonitorApp(feed)
    assert snap_compare(app, terminal_size=size, run_before=until_shown(SCREENS[screen]))


async def controlled_feed(show: Show) -> None:
    show(controlled_view())
    await trio.sleep_forever()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", ["replicas", "log", "roles"])
def test_controller_mode(screen: str, size: tuple[int, int], snap_compare: Callable[..., bool]) -> None:
    keys = {**SCREENS, "roles": "6"}
    app = MonitorApp(controlled_feed)
    assert snap_compare(app, terminal_size=size, run_before=until_shown(keys[screen]))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", ["replicas", "log", "roles"])
def test_controller_mode_in_a_replay(
    screen: str, size: tuple[int, int], recorded_group: Path, snap_compare: Callable[..., bool]
) -> None:
    """Of recorded sessions, 18 s after the first master has come back."""
    source = open_replay([recorded_group])
    while source.work(for_s=1.0):
        pass
    source.seek(WALL_NS // 1_000_000 + 100_000)
    keys = {**SCREENS, "roles": "6"}
    app = MonitorApp(source, playback=source)
    assert snap_compare(app, terminal_size=size, run_before=until_shown(keys[screen]))


def test_help_on_roles(snap_compare: Callable[..., bool]) -> None:
    app = MonitorApp(controlled_feed)
    assert snap_compare(app, terminal_size=(100, 60), run_before=until_shown("6", "question_mark"))


def test_the_light_theme(snap_compare: Callable[..., bool]) -> None:
    app = MonitorApp(feed)

    async def run(pilot: Pilot[None]) -> None:
        app.theme = LIGHT.name
        await until_shown("l")(pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=run)


def test_help(snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(MonitorApp(feed), terminal_size=(100, 60), run_before=until_shown("question_mark"))
