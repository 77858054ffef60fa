"""The keys of the screen, and the help on those that are active."""

from __future__ import annotations

from textual.binding import Binding, BindingType
from textual.screen import Screen

from trioha_monitor.panes.pane import HelpTopic

LIVE_ONLY = frozenset({"pause"})
REPLAY_ONLY = frozenset({"play", "speed", "turn", "step", "seek_event", "jump", "until"})
MOVES = frozenset(f"table.{move}" for move in ("up", "down", "page-up", "page-down", "first", "last", "open"))
"""Keys that help lists together."""

SCREEN_KEYS: list[BindingType] = [
    Binding(
        "1",
        "pane('replicas')",
        "Replicas",
        show=False,
        tooltip="All replicas, and lag",
        id="pane.replicas",
    ),
    Binding("2", "pane('slave')", "Slave", show=False, tooltip="One replica in depth", id="pane.slave"),
    Binding("3", "pane('log')", "Log", show=False, tooltip="Logs, disks, puts", id="pane.log"),
    Binding("4", "pane('events')", "Events", show=False, tooltip="The timeline of events", id="pane.events"),
    Binding(
        "space",
        "pause",
        "Pause",
        key_display="space",
        tooltip="Hold the tables while graphs go on",
        id="monitor.pause",
    ),
    Binding(
        "space",
        "play",
        "Play",
        key_display="space",
        tooltip="Play or pause",
        id="replay.play",
    ),
    Binding(
        "slash",
        "filter",
        "Filter",
        key_display="/",
        tooltip="Show only rows with a text",
        id="monitor.filter",
    ),
    Binding(
        "plus,equals_sign",
        "span(1)",
        "Longer",
        show=False,
        key_display="+",
        tooltip="Draw more time",
        id="monitor.longer",
    ),
    Binding(
        "minus",
        "span(-1)",
        "Shorter",
        show=False,
        key_display="-",
        tooltip="Draw less time",
        id="monitor.shorter",
    ),
    Binding("u", "units", "Units", tooltip="KiB, kB or bytes", id="monitor.units"),
    Binding(
        "c",
        "copy",
        "Copy",
        tooltip="Copy the replicas as mqadmin haStatus prints them",
        id="monitor.copy",
    ),
    Binding("r", "record", "Record", tooltip="Start or stop a recording of the views", id="monitor.record"),
    Binding(
        "right_square_bracket",
        "speed(1)",
        "Faster",
        show=False,
        key_display="]",
        tooltip="Play twice as fast",
        id="replay.faster",
    ),
    Binding(
        "left_square_bracket",
        "speed(-1)",
        "Slower",
        show=False,
        key_display="[",
        tooltip="Play half as fast",
        id="replay.slower",
    ),
    Binding("b", "turn", "Backward", show=False, tooltip="Play the other way", id="replay.turn"),
    Binding(
        "full_stop",
        "step(1)",
        "Step",
        show=False,
        key_display=".",
        tooltip="A small step forward",
        id="replay.step",
    ),
    Binding(
        "comma",
        "step(-1)",
        "Step back",
        show=False,
        key_display=",",
        tooltip="A small step back",
        id="replay.step-back",
    ),
    Binding("n", "seek_event(1)", "Next event", show=False, tooltip="Go to the next event", id="replay.next"),
    Binding(
        "N",
        "seek_event(-1)",
        "Previous event",
        show=False,
        tooltip="Go to the event before",
        id="replay.previous",
    ),
    Binding(
        "g",
        "jump",
        "Go to",
        show=False,
        tooltip="Go to a time: local, unless Z or an offset follows",
        id="replay.jump",
    ),
    Binding(
        "f",
        "until",
        "Until",
        show=False,
        tooltip="As fast as possible until a condition holds",
        id="replay.until",
    ),
    Binding("question_mark", "help", "Help", tooltip="Keys and columns", id="monitor.help"),
]


def help_on_keys(screen: Screen[None]) -> HelpTopic:
    """All active keys of `screen`."""
    terms: list[tuple[str, str]] = []
    listed: set[str] = set()
    for active in sorted(screen.active_bindings.values(), key=lambda active: _key_order(active.binding.id)):
        binding = active.binding
        if not active.enabled or binding.id is None or not (binding.tooltip or binding.description):
            continue
        label = screen.app.get_key_display(binding)
        if binding.id in MOVES or binding.id in listed:
            # A key that moves a cursor, or a second key of a binding.
            continue
        listed.add(binding.id)
        terms.append((label, binding.tooltip or binding.description))
    terms += [
        ("↑ ↓ home end", "choose a row; so does a click"),
        ("enter", "see more of the row; so does a double click"),
        ("click", "on a column's name sorts by it, on a screen's name opens it"),
    ]
    return HelpTopic("Keys", terms)


def _key_order(identity: str | None) -> int:
    """Screens first, keys of the application last."""
    groups = ("pane", "replay", "monitor", "replicas", "slave", "table", "app")
    group = (identity or "").partition(".")[0]
    return groups.index(group) if group in groups else len(groups)
