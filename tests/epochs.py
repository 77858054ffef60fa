"""Which epoch of a log a byte is of: what tests check a broker's answers with."""

from trioha.store.epochs import EpochEntry, EpochTable


def epoch_at(table: EpochTable, offset: int) -> EpochEntry | None:
    """The epoch that the byte at `offset` belongs to, or will belong to; None before the first one."""
    return next((entry for entry in reversed(table.entries) if entry.start_offset <= offset), None)
