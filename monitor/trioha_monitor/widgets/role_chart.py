"""Roles of brokers on the time axis: a line for each broker, the newest moment on the right. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

from trioha_monitor.rendering import Line, RenderContext, StyledText
from trioha_monitor.texts import format_span
from trioha_monitor.view import NodeView, RoleSpan
from trioha_monitor.widgets.graph import ROLE_GLYPH, column_of, runs

LABEL_MAX = 24
"""Widest label."""


def role_chart(nodes: Sequence[NodeView], context: RenderContext, *, width: int) -> list[Line]:
    """A line for each of `nodes`, and the time axis below them; `width` cells each."""
    gutter = min(LABEL_MAX, max((cell_len(node.label) for node in nodes), default=0)) + 1
    room = width - gutter
    if room < 10 or not nodes:
        return []
    palette = context.palette
    lines: list[Line] = []
    for node in nodes:
        label = set_cell_size(node.label, gutter - 1) + " "
        lines.append(((label, palette.strong), *runs(_cells(node.roles, context, room))))
    left, right = f"-{format_span(context.span_ms / 1000)}", "now"
    lines.append(((" " * gutter + left + right.rjust(room - len(left)), palette.muted),))
    return lines


def _cells(roles: Sequence[RoleSpan], context: RenderContext, width: int) -> list[StyledText]:
    palette = context.palette
    cells: list[StyledText] = [(" ", palette.muted)] * width
    looks = {
        "master": ("█", palette.good),
        "slave": ("─", palette.notice),
        "none": ("·", palette.warn),
        "": ("✗", palette.bad),
    }
    ends = [*(later.time_ms for _, later in pairwise(roles)), None]
    for place, (span, end_ms) in enumerate(zip(roles, ends, strict=True)):
        start = column_of(span.time_ms, context, width)
        end = width if end_ms is None else column_of(end_ms, context, width)
        if end < 0 or (end == start and place + 1 < len(roles)):
            # Not drawn any more, or shorter than a column: the one after it is drawn there.
            continue
        glyph, style = looks.get(span.role, looks["none"])
        for x in range(max(0, start), min(width, end)):
            cells[x] = (glyph, style)
        if place and start >= 0 and span.role:
            cells[start] = (ROLE_GLYPH, style)
        if span.role == "master" and span.epoch is not None:
            # A blank, the epoch and a blank, if there is room for them.
            words = f" {span.epoch} "
            begin = max(0, start + 1)
            if begin + len(words) < min(width, end):
                for x, char in enumerate(words, start=begin):
                    cells[x] = (char, palette.strong)
    return cells
