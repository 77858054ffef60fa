"""The figure of a group of brokers under controllers: roles, epochs and what happened to them over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Final

import numpy as np
from plotly.graph_objects import Figure, Scatter

from trioha.recording.events import GroupRole, Kind, SetEvent
from trioha.recording.role_lives import RoleEvent, RoleLife, describe
from trioha_analysis.reports.page import label, new_figure
from trioha_analysis.reports.session_figures import wall_times

LIVES_MAX: Final = 400
"""Roles of a group that get a bar: the latest ones."""
MARKS_MAX: Final = 2000
"""Marks of each kind: the latest ones."""

_COLORS: Final = {GroupRole.MASTER: "#1a9e6b", GroupRole.SLAVE: "#2f6fde", GroupRole.NONE: "#b8c1ce"}
_LABELED_SHARE: Final = 0.03
"""Bars shorter than this part of the time have their epoch in the hover text only."""
_MARKS: Final = {
    "no controller leads": ("triangle-down", "#d9a50f"),
    "controller leads": ("triangle-up", "#7a869a"),
    "sync-state set changed": ("diamond", "#7a3fb5"),
    "proposal refused or undecided": ("diamond-open", "#f0c9c4"),
    "log cut": ("x", "#b42318"),
}
"""Symbol and colour by what happened, in the order in which they are drawn: rare ones above."""


def role_timeline(lives: Sequence[RoleLife], zone: tzinfo | None) -> Figure:
    """A row for each broker with its roles as bars, and marks for what happened, in times of `zone`.

    `lives` are those of one group, of which one has an id. Those before a broker's first id are left out, and
    controllers are marked where they changed during a role.
    """
    shown = sorted((life for life in lives if life.broker_id >= 0), key=_start)[-LIVES_MAX:]
    rows = {broker_id: _row(broker_id) for broker_id in sorted({life.broker_id for life in shown})}
    figure = new_figure(
        f"Roles and epochs of {label(shown[0].broker_name)}",
        height=200 + 60 * len(rows),
        margin_l=110,
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(rows.values()),
            "autorange": "reversed",
        },
        hovermode="closest",
    )
    span_ns = max(life.ended_ns for life in shown) - min(map(_start, shown))
    for role in _COLORS:
        _add_bars(figure, [life for life in shown if life.role is role], rows, zone, span_ns=span_ns)
    for name in _MARKS:
        marks = [(life, event) for life in shown for event in _marked(life) if _mark_of(event) == name]
        _add_marks(figure, name, marks[-MARKS_MAX:], rows, zone)
    return figure


def _start(life: RoleLife) -> int:
    return life.began.at_ns


def _row(broker_id: int) -> str:
    return f"broker {broker_id}"


def _marked(life: RoleLife) -> list[RoleEvent]:
    """Its events without the leading controller at its start."""
    first = next((event for event in life.events if event.kind is Kind.CONTROLLER), None)
    return [event for event in life.events if event is not first or not event.flags]


def _add_bars(
    figure: Figure,
    lives: Sequence[RoleLife],
    rows: dict[int, str],
    zone: tzinfo | None,
    *,
    span_ns: int,
) -> None:
    """Thick lines, since Plotly's bars have no start on an axis of time."""
    if not lives:
        return
    role = lives[0].role
    times = wall_times(
        np.array([at for life in lives for at in (_start(life), life.ended_ns)], np.int64), zone
    )
    x: list[str | None] = []
    y: list[str | None] = []
    hover: list[str | None] = []
    for place, life in enumerate(lives):
        begin, end = times[2 * place : 2 * place + 2]
        text = label(describe(life, life.began))
        x += [begin, end, None]
        y += [rows[life.broker_id], rows[life.broker_id], None]
        hover += [text, text, None]
        if life.epoch >= 0 and life.ended_ns - _start(life) >= span_ns * _LABELED_SHARE:
            figure.add_annotation(
                x=begin,
                y=rows[life.broker_id],
                text=f"epoch {life.epoch}",
                showarrow=False,
                xanchor="left",
                xshift=9,
                font={"size": 11, "color": "white"},
            )
    figure.add_trace(
        Scatter(
            x=x,
            y=y,
            text=hover,
            hoverinfo="text+x",
            name=role.name if role is not GroupRole.NONE else "no role",
            mode="lines",
            line={"color": _COLORS[role], "width": 22},
        )
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


def _add_marks(
    figure: Figure,
    name: str,
    marks: Sequence[tuple[RoleLife, RoleEvent]],
    rows: dict[int, str],
    zone: tzinfo | None,
) -> None:
    if not marks:
        return
    symbol, color = _MARKS[name]
    figure.add_trace(
        Scatter(
            x=wall_times(np.array([event.at_ns for _, event in marks], np.int64), zone),
            y=[rows[life.broker_id] for life, _ in marks],
            text=[label(describe(life, event)) for life, event in marks],
            hoverinfo="text+x",
            name=name,
            mode="markers",
            marker={
                "symbol": symbol,
                "size": 10,
                "color": color,
                "line": {"color": "white" if not symbol.endswith("open") else color, "width": 1},
            },
        )
    )
