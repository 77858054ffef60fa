"""The chart of a group of brokers under controllers: roles, epochs and what happened to them over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from html import escape
from typing import Final

import numpy as np
from markupsafe import Markup

from trioha.palette import ACCENT, BAD, MUTED, NOTICE, ROLES, WARNING, Hue
from trioha.recording.events import GroupRole, Kind, SetEvent
from trioha_analysis.reports.charts import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    TimeAxis,
    figure_html,
    legend_item,
    style_of,
)
from trioha_sessions.role_lives import RoleEvent, RoleLife, describe

LIVES_MAX: Final = 400
"""Roles of a group that get a bar: the latest ones."""
MARKS_MAX: Final = 1000
"""Marks of each kind: the latest ones."""

_ROW_HEIGHT: Final = 56
_BAR_HEIGHT: Final = 22
_MARK_WIDTH: Final = 12
_CHAR_WIDTH: Final = 7.5
"""Of a bar's label, at most."""
_MARKS: Final[dict[str, tuple[str, Hue]]] = {
    "controller leads": ("\N{BLACK UP-POINTING TRIANGLE}", MUTED),
    "no controller leads": ("\N{BLACK DOWN-POINTING TRIANGLE}", WARNING),
    "sync-state set changed": ("\N{BLACK DIAMOND}", NOTICE),
    "proposal refused or undecided": ("\N{WHITE DIAMOND}", ACCENT),
    "log cut": ("\N{MULTIPLICATION X}", BAD),
}
"""Glyph and colour by what happened."""


def role_timeline(lives: Sequence[RoleLife], zone: tzinfo | None) -> Markup:
    """A row for each broker: its roles as bars, and above them marks for what happened, in times of `zone`.

    `lives` are those of one group, of which one has an id. Those before a broker's first id are left out, and
    controllers are marked where they changed during a role.
    """
    shown = sorted((life for life in lives if life.broker_id >= 0), key=_start)[-LIVES_MAX:]
    rows = {broker_id: row for row, broker_id in enumerate(sorted({life.broker_id for life in shown}))}
    height = _ROW_HEIGHT * len(rows)
    axis = TimeAxis.over(min(map(_start, shown)), max(life.ended_ns for life in shown), zone)
    marks = {
        name: [(life, event) for life in shown for event in _marked(life) if _mark_of(event) == name][
            -MARKS_MAX:
        ]
        for name in _MARKS
    }
    body = [axis.svg(height=height)]
    body += [
        f'<text x="{LEFT - 8}" y="{_bar_top(row) + 15}" text-anchor="end">broker {broker_id}</text>'
        f'<path class="grid" d="M{LEFT} {TOP + _ROW_HEIGHT * (row + 1)}H{WIDTH - RIGHT}"/>'
        for broker_id, row in rows.items()
    ]
    body += [_bar(life, rows[life.broker_id], axis) for life in shown]
    body += _mark_texts(marks, rows, axis)
    roles = [role for role in GroupRole if any(life.role is role for life in shown)]
    legend = [legend_item(_role_name(role), f"background:{ROLES[role.name].fill}") for role in roles]
    legend += [
        legend_item(name, style_of(_MARKS[name][1]), glyph=_MARKS[name][0]) for name in _MARKS if marks[name]
    ]
    return figure_html(
        f"Roles and epochs of {shown[0].broker_name}", "".join(body), height=height, legend=legend
    )


def _start(life: RoleLife) -> int:
    return life.began.at_ns


def _role_name(role: GroupRole) -> str:
    return role.name if role is not GroupRole.NONE else "no role"


def _bar_top(row: int) -> float:
    return TOP + _ROW_HEIGHT * row + 26


def _marked(life: RoleLife) -> list[RoleEvent]:
    """Its events without the leading controller at its start."""
    first = next((event for event in life.events if event.kind is Kind.CONTROLLER), None)
    return [event for event in life.events if event is not first or not event.flags]


def _bar(life: RoleLife, row: int, axis: TimeAxis) -> str:
    begin, end = axis.x(np.array([_start(life), life.ended_ns])).tolist()
    words = f"epoch {life.epoch}"
    name = ""
    if life.epoch >= 0 and end - begin >= _CHAR_WIDTH * (len(words) + 1):
        name = f'<text class="on" x="{begin + 6:.1f}" y="{_bar_top(row) + 15}">{words}</text>'
    return (
        f'<g><title>{escape(describe(life, life.began))}</title><rect x="{begin:.1f}" y="{_bar_top(row)}" '
        f'width="{max(end - begin, 1.5):.1f}" height="{_BAR_HEIGHT}" '
        f'style="fill:{ROLES[life.role.name].fill}"/>{name}</g>'
    )


def _mark_of(event: RoleEvent) -> str | None:
    match event.kind:
        case Kind.LOG_CUT:
            return "log cut"
        case Kind.CONTROLLER:
            return "controller leads" if event.flags else "no controller leads"
        case Kind.SYNC_STATE_SET if event.flags == SetEvent.CHANGED:
            return "sync-state set changed"
        case Kind.SYNC_STATE_SET if event.flags != SetEvent.PROPOSED:
            return "proposal refused or undecided"
    return None


def _mark_texts(
    marks: Mapping[str, Sequence[tuple[RoleLife, RoleEvent]]], rows: Mapping[int, int], axis: TimeAxis
) -> Iterator[str]:
    """Marks of one row and moment stand side by side, as long as that moves them by little."""
    every = [(event.at_ns, life, event, name) for name, found in marks.items() for life, event in found]
    taken = dict.fromkeys(rows.values(), 0.0)
    for at_ns, life, event, name in sorted(every, key=_at):
        (place,) = axis.x(np.array([at_ns])).tolist()
        row = rows[life.broker_id]
        x = min(max(place, taken[row] + _MARK_WIDTH), place + 3 * _MARK_WIDTH)
        taken[row] = x
        glyph, hue = _MARKS[name]
        yield (
            f'<text class="mark" x="{x:.1f}" y="{_bar_top(row) - 6}" text-anchor="middle" '
            f'style="{style_of(hue)}">{glyph}<title>{escape(describe(life, event))}</title></text>'
        )


def _at(mark: tuple[int, RoleLife, RoleEvent, str]) -> int:
    return mark[0]
