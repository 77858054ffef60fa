"""Faults of the monitor itself: the border that ends them, what is said of them, where they are written."""

from __future__ import annotations

from typing import Final

from trioha.net.border import ConnectionBorder
from trioha_monitor.texts import REASON_MAX

BORDER: Final = ConnectionBorder("monitor feed")
"""Ends what goes wrong with one node or one name server; counts and logs it."""


def fault_of_this_program(error: Exception) -> str:
    """What the row of a node says after the border ended its connection."""
    return f"a fault of this monitor, see its log: {type(error).__name__}: {str(error)[:REASON_MAX]}"
