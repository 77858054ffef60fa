"""A slave's copy of its master's topics, groups and offsets, as its status has it. Pure."""

from __future__ import annotations

from trioha.broker_status import MetadataStatus
from trioha_monitor.texts import clean
from trioha_monitor.view import MetadataView


def view_metadata(status: MetadataStatus | None, *, answer_age_s: float) -> MetadataView | None:
    """The copy, `answer_age_s` after the slave's answer; None if the slave reports none."""
    if status is None:
        return None
    ages_ms = [table.age_ms for table in status.tables.values()]
    known_ms = [age_ms for age_ms in ages_ms if age_ms is not None]
    is_whole = bool(ages_ms) and len(known_ms) == len(ages_ms)
    return MetadataView(
        age_s=max(known_ms) / 1000 + answer_age_s if is_whole else None,
        faults=tuple(
            f"{clean(name)}: {clean(table.error)}" for name, table in status.tables.items() if table.error
        ),
        offsets_kept=status.regressions_kept,
    )
