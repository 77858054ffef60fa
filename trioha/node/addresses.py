"""Addresses that a node listens on, and addresses that it announces."""

from __future__ import annotations

import os
from typing import Final

ANY_ADDRESSES: Final = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared with, not bound to


def announced(bind_address: str, broker_ip: str) -> str:
    """The host that others dial: `broker_ip` if the node listens on all addresses, else `bind_address`."""
    return broker_ip if bind_address in ANY_ADDRESSES else bind_address


def os_reason(error: OSError) -> str:
    """The system's reason why it cannot listen on an address."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
