"""The keys of the screen, and the help on those that are active."""

from __future__ import annotations

from textual.binding import Binding, BindingType
from textual.screen import Screen

from trioha_monitor.panes.pane import HelpTopic

LIVE_ONLY = frozenset({"pause"})
REPLAY_ONLY = frozenset({"play", "speed", "turn", "step", "seek_event", "jump", "until"})
MOVES = frozenset(f"table.{move}" for move in ("up", "down", "page-up", "page-down", "first", "last", "open"))
"""Keys that help lists together."""


def _key(
    identity: str,
    key: str,
    action: str,
    label: str,
    tooltip: str,
    *,
    display: str | None = None,
    in_footer: bool = False,
) -> Binding:
    return Binding(key, action, label, show=in_footer, key_display=display, tooltip=tooltip, id=identity)


SCREEN_KEYS: list[BindingType] = [
    _key("pane.replicas", "1", "pane('replicas')", "Replicas", "All replicas, and lag"),
    _key("pane.slave", "2", "pane('slave')", "Slave", "One replica in depth"),
    _key("pane.log", "3", "pane('log')", "Log", "Logs, disks, puts"),
    _key("pane.events", "4", "pane('events')", "Events", "The timeline of events"),
    _key("pane.groups", "5", "pane('groups')", "Groups", "Topics, groups and their lag"),
    _key("pane.roles", "6", "pane('roles')", "Roles", "Controller mode: roles, epochs, sync-state sets"),
    _key(
        "monitor.pause",
        "space",
        "pause",
        "Pause",
        "Hold the tables while graphs go on",
        display="space",
        in_footer=True,
    ),
    _key("replay.play", "space", "play", "Play", "Play or pause", display="space", in_footer=True),
    _key(
        "monitor.filter",
        "slash",
        "filter",
        "Filter",
        "Show only rows with a text",
        display="/",
        in_footer=True,
    ),
    _key("monitor.longer", "plus,equals_sign", "span(1)", "Longer", "Draw more time", display="+"),
    _key("monitor.shorter", "minus", "span(-1)", "Shorter", "Draw less time", display="-"),
    _key("monitor.units", "u", "units", "Units", "KiB, kB or bytes", in_footer=True),
    _key(
        "monitor.copy",
        "c",
        "copy",
        "Copy",
        "Write the replicas to a file, as mqadmin haStatus prints them",
        in_footer=True,
    ),
    _key("monitor.record", "r", "record", "Record", "Start or stop a recording of the views", in_footer=True),
    _key("replay.faster", "right_square_bracket", "speed(1)", "Faster", "Play twice as fast", display="]"),
    _key("replay.slower", "left_square_bracket", "speed(-1)", "Slower", "Play half as fast", display="["),
    _key("replay.turn", "b", "turn", "Backward", "Play the other way"),
    _key("replay.step", "full_stop", "step(1)", "Step", "A small step forward", display="."),
    _key("replay.step-back", "comma", "step(-1)", "Step back", "A small step back", display=","),
    _key("replay.next", "n", "seek_event(1)", "Next event", "Go to the next event"),
    _key("replay.previous", "N", "seek_event(-1)", "Previous event", "Go to the event before"),
    _key("replay.jump", "g", "jump", "Go to", "Go to a time: local, unless Z or an offset follows"),
    _key("replay.until", "f", "until", "Until", "As fast as possible until a condition holds"),
    _key("monitor.help", "question_mark", "help", "Help", "Keys and columns", in_footer=True),
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
