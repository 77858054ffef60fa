"""A slave's copy of its master's topics, groups and offsets, as its status has it. Pure."""

from __future__ import annotations

from itertools import islice
from typing import Final

from trioha.broker_status import MetadataStatus
from trioha.outside_text import clean
from trioha_monitor.view import MetadataView

TABLES_MAX: Final = 16
"""Tables of one answer that are looked at: trioha has seven."""


def view_metadata(status: MetadataStatus | None, *, answer_age_s: float) -> MetadataView | None:
    """The copy, `answer_age_s` after the slave's answer; None if the slave reports none."""
    if status is None:
        return None
    tables = dict(islice(status.tables.items(), TABLES_MAX))
    ages_ms = [table.age_ms for table in tables.values()]
    known_ms = [age_ms for age_ms in ages_ms if age_ms is not None]
    is_whole = bool(ages_ms) and len(known_ms) == len(ages_ms)
    return MetadataView(
        age_s=max(0, *known_ms) / 1000 + answer_age_s if is_whole else None,
        faults=tuple(f"{clean(name)}: {clean(table.error)}" for name, table in tables.items() if table.error),
        offsets_kept=max(0, status.regressions_kept),
    )
