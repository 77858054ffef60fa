"""The keys of the screen."""

from __future__ import annotations

from textual.binding import Binding, BindingType

LIVE_ONLY = frozenset({"pause"})
REPLAY_ONLY = frozenset({"play", "speed", "turn", "step", "seek_event", "jump", "until"})
HELPING = frozenset({"scroll_help", "close_help"})
"""Actions on open help."""


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
    """A key of the screen. It has priority: the next key of fast typing finds the pane or the line that
    this one opened."""
    return Binding(
        key,
        action,
        label,
        show=in_footer,
        key_display=display,
        tooltip=tooltip,
        id=identity,
        priority=True,
    )


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
    _key(
        "replay.jump",
        "g",
        "jump",
        "Go to",
        "Go to a time: local, unless Z or an offset follows",
    ),
    _key("replay.until", "f", "until", "Until", "As fast as possible until a condition holds"),
    _key("monitor.help", "question_mark", "help", "Help", "Keys and columns", in_footer=True),
    Binding("escape,q", "close_help", "Close help", show=False, id="help.close"),
    Binding("pagedown", "scroll_help(1)", "Scroll help", show=False, priority=True, id="help.down"),
    Binding("pageup", "scroll_help(-1)", "Scroll help", show=False, priority=True, id="help.up"),
]
