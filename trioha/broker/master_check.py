"""Whether the broker that a slave is about to follow is its master: asked before the log is copied.

The HA protocol names neither broker nor file size. A slave with another brokerName would copy another
broker's log and register it under its own name; one with other log files would stop at the end of its first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import structlog

from trioha.broker.metadata_sync import Connect, MasterAddress, broker_settings
from trioha.errors import PeerError, RemoteProtocolError

log = structlog.get_logger(__name__)


class MasterCheck:
    """Compares the settings of a master with those of its slave, once for each address."""

    def __init__(
        self,
        master: MasterAddress,
        expected: Mapping[str, str],
        *,
        connect: Connect,
        on_settings: Callable[[Mapping[str, str]], Awaitable[None]],
    ) -> None:
        """`expected`: settings that both must have; `on_settings` gets all of the right master's."""
        self._master = master
        self._expected = expected
        self._connect = connect
        self._on_settings = on_settings
        self._checked: str | None = None
        """The address that was found to be right."""

    async def refusal(self) -> str:
        """What the master has otherwise than its slave; empty if nothing, or if it cannot be asked."""
        address = self._master.current()
        if address is None or address == self._checked:
            return ""
        try:
            async with self._connect(address) as client:
                settings = await broker_settings(client)
        except (PeerError, RemoteProtocolError) as error:
            log.debug("master not asked for its settings", address=address, reason=str(error))
            return ""
        if self._master.is_guess and settings.get("haListenPort") != str(self._master.ha_port):
            # Another broker listens beside the HA port.
            return ""
        for key, value in self._expected.items():
            found = settings.get(key)
            if found is not None and found != value:
                return f"the {key} of {address} is {found[:80]!r}, that of this slave is {value!r}"
        self._checked = address
        await self._on_settings(settings)
        return ""
