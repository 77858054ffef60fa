"""Addresses that a node listens on, and those that it tells others."""

from __future__ import annotations

import os
from typing import Final

ANY_ADDRESSES: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared with, not bound to


def announced(bind_address: str, broker_ip: str) -> str:
    """The host for others: brokerIP where all addresses are listened on, else the only one that is."""
    return broker_ip if bind_address in ANY_ADDRESSES else bind_address


def os_reason(error: OSError) -> str:
    """What the system says about an address that cannot be listened on."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
