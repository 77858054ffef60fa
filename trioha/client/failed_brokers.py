"""Brokers that did not answer a moment ago.

A master that is lost with its machine stays in the route until its name server notices, up to two minutes.
Until then a consumer reads from a slave of the same broker name, and tries the master again every `AVOID_S`.
"""

from __future__ import annotations

from typing import Final

import trio

AVOID_S: Final = 10.0
"""How long another broker of the same name is asked first."""
FAILED_MAX: Final = 1024


class FailedBrokers:
    """Addresses that are avoided where there is another one."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        """Earliest first: all are avoided for the same time."""

    def __contains__(self, address: object) -> bool:
        until_s = self._until_s.get(address, 0.0) if isinstance(address, str) else 0.0
        return trio.current_time() < until_s

    def add(self, address: str) -> None:
        """The broker at `address` did not answer."""
        self._until_s.pop(address, None)
        self._until_s[address] = trio.current_time() + AVOID_S
        if len(self._until_s) > FAILED_MAX:
            del self._until_s[next(iter(self._until_s))]
