"""What every pane has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from textual.containers import Vertical
from textual.message import Message

from trioha_monitor.view import ClusterView
from trioha_monitor.widgets.render_context import RenderContext
from trioha_monitor.widgets.row_table import RowTable


@frozen
class PaneModel:
    """What a pane is shown."""

    view: ClusterView
    """The newest view: graphs show it."""
    held: ClusterView
    """What tables and figures show: an older view while they are paused, else the newest."""
    context: RenderContext
    replica: int | None = None
    """Key of the chosen replica."""

    @property
    def is_paused(self) -> bool:
        """Whether tables stand still."""
        return self.held is not self.view


@frozen
class HelpTopic:
    """One paragraph of help: a title, and terms with what they mean."""

    title: str
    terms: Sequence[tuple[str, str]]


class Pane(Vertical):
    """One screen of the monitor. Shows scenes, and keeps only what the user chose."""

    class ReplicaChosen(Message):
        """The user looks at another replica."""

        def __init__(self, key: int, *, open_it: bool = False) -> None:
            super().__init__()
            self.key = key
            self.open_it = open_it
            """Whether to see it in depth."""

    class MomentChosen(Message):
        """The user wants to see this moment: a replay goes there."""

        def __init__(self, time_ms: int) -> None:
            super().__init__()
            self.time_ms = time_ms

    def show(self, model: PaneModel) -> None:
        """Show `model` in place of the one before."""
        raise NotImplementedError

    @property
    def main_table(self) -> RowTable[Any] | None:
        """The table that the filter filters; None if there is none."""
        return None

    @property
    def help_topics(self) -> Sequence[HelpTopic]:
        """What `?` says of it."""
        raise NotImplementedError


def terms_of(table: RowTable[Any]) -> list[tuple[str, str]]:
    """What the columns of a table mean."""
    return [(column.label, column.help) for column in table.columns]


def title_of(name: str, table: RowTable[Any], *, shown: int, of: int) -> str:
    """A table's title: with its filter and its order where it has them."""
    parts = [name]
    if table.filter_text:
        parts.append(f"{shown} of {of} with “{table.filter_text}”")
    if table.sort_label:
        parts.append(table.sort_label)
    return " · ".join(parts)
