"""The groups that a client is a member of, and what brokers tell it of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import structlog
import trio
from attrs import frozen

from trioha.client.offset_reset import OffsetReset
from trioha.errors import RemoteProtocolError
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.route import MessageQueue
from trioha.remoting.subscriptions import Subscription

log = structlog.get_logger(__name__)


@frozen
class Consumption:
    """What a client consumes as a member of a group."""

    subscriptions: Sequence[Subscription]
    on_members_changed: Callable[[], None]
    """Called when a broker reports a change of the group's members."""
    on_reset: Callable[[Mapping[MessageQueue, int]], None]
    """Called with new offsets when an administrator resets those of the group."""


class Memberships:
    """The memberships of one client. `heartbeat_due` is set when brokers have to be told of them."""

    def __init__(self) -> None:
        self.producers: Counter[str] = Counter()
        """How many producers work for each group."""
        self.consumptions: dict[str, Consumption] = {}
        """By group."""
        self.heartbeat_due = trio.Event()

    def connected(self, _address: str) -> None:
        """There is a new connection: the end of the old one was the end of the memberships at that broker."""
        self.heartbeat_due.set()

    def receive(self, address: str, command: RemotingCommand) -> None:
        """Handle a request of the broker at `address`."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            changed = self.consumptions.get(command.ext_fields.get("consumerGroup", ""))
            if changed is not None:
                changed.on_members_changed()
        elif command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            try:
                reset = OffsetReset.of(command)
            except RemoteProtocolError as error:
                log.warning("reset of offsets not understood", address=address, reason=str(error))
                return
            consumption = self.consumptions.get(reset.group)
            if consumption is not None:
                consumption.on_reset(reset.offsets)
