"""What the user chose, from one run of the monitor to the next."""

import asyncio
from functools import partial

import pytest
import trio

from tests.monitor.scenes import busy_view
from trioha.errors import ConfigError
from trioha_monitor.app import MonitorApp
from trioha_monitor.app import _run_with_state as run_with_state
from trioha_monitor.faults import FaultLog, state_folder
from trioha_monitor.panes.replicas import ReplicasPane
from trioha_monitor.rendering import ByteUnits
from trioha_monitor.saved_state import SavedState, read_state, write_state
from trioha_monitor.widgets.row_table import Order

STATE = SavedState("events", ByteUnits.EXACT, "nord", {"replicas-table": Order("diff", True)})


def test_a_state_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "monitor.json"
    assert read_state(path) == SavedState()
    write_state(path, STATE)
    assert read_state(path) == STATE
    assert [each.name for each in path.parent.iterdir()] == ["monitor.json"]


def test_values_of_another_version_leave_the_default(tmp_path):
    path = tmp_path / "monitor.json"
    path.write_text(
        '{"screen": "tea", "units": 7, "sort": {"a": ["b", true], "c": [1, true], "d": {}}, "more": 1}'
    )
    assert read_state(path) == SavedState(orders={"a": Order("b", True)})


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_a_damaged_file_is_named(tmp_path, text):
    path = tmp_path / "monitor.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_state(path)
    assert str(refused.value) == (f"{path}: is not a saved state of the monitor; the next exit replaces it")


def play(keys, *, seen, monkeypatch):
    """Run the monitor, press `keys` and quit; `seen` gets it before."""
    monkeypatch.setattr(FaultLog, "capture_logs", lambda _log: None)

    async def feed(show):
        show(busy_view())
        await trio.sleep_forever()

    async def steps(app):
        async with app.run_test(size=(120, 40)) as pilot:
            while app.monitor_screen.pane.model is None:
                await pilot.pause(0.01)
            seen(app)
            await pilot.press(*keys, "q")

    monkeypatch.setattr(MonitorApp, "run", lambda app: asyncio.run(steps(app)))
    return run_with_state(partial(MonitorApp, feed))


def test_screen_units_theme_and_order_come_back(monkeypatch):
    code = play(["o", "O", "u", "t", "3"], seen=lambda app: None, monkeypatch=monkeypatch)
    assert code == 0
    states = []

    def see(app):
        screen = app.monitor_screen
        replicas_pane = screen.panes["replicas"]
        assert isinstance(replicas_pane, ReplicasPane)
        states.append((screen.pane.id, screen.units, app.theme, replicas_pane.table.order))
        assert screen.query_one("#top").tabs.active == "tab-log"

    play([], seen=see, monkeypatch=monkeypatch)
    assert states == [("log", ByteUnits.DECIMAL, "trioha-light", Order("verdict", True))]


def test_a_damaged_state_is_a_notice_and_a_theme_that_is_gone_is_the_default(monkeypatch):
    path = state_folder() / "monitor.json"
    write_state(path, SavedState(theme="gone"))
    seen = []
    play([], seen=lambda app: seen.append(app.theme), monkeypatch=monkeypatch)
    path.write_text("tea")

    # A notice that is shown goes by the clock.
    monkeypatch.setattr(MonitorApp, "notify", lambda _app, message, **_options: seen.append(message))
    play([], seen=lambda app: None, monkeypatch=monkeypatch)
    assert seen == [
        "trioha-dark",
        f"{path}: is not a saved state of the monitor; the next exit replaces it",
    ]
    assert read_state(path).theme == "trioha-dark"


def test_a_state_that_cannot_be_written_is_reported_after_the_screen(monkeypatch, capsys):
    folder = state_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where a folder should be")
    play([], seen=lambda app: None, monkeypatch=monkeypatch)
    assert f"monitor: the choices are not kept: {folder / 'monitor.json'}: " in capsys.readouterr().err
