"""The parts of a node for messages with a time of delivery; a slave delivers none."""

from __future__ import annotations

from collections.abc import Callable

import trio
from attrs import frozen

from trioha.broker.puts import PutService
from trioha.broker.timer_delivery import TimerDelivery, TimerProgress
from trioha.broker.timer_handover import TimerHandover
from trioha.broker.timer_messages import TimerMessages
from trioha.broker.timer_records import PendingTimers
from trioha.config.broker import BrokerConfig
from trioha.metadata.table import wall_clock_ms
from trioha.node.pending_messages import PendingCounter, timer_settings
from trioha.store.message_store import MessageStore


@frozen
class Timers:
    """The parts that keep and deliver timers."""

    messages: TimerMessages
    """Makes the records in which they wait."""
    first_ms: Callable[[], int | None]
    """As `MetadataProcessor` asks for it."""
    pending: Callable[[], PendingTimers | None]
    """What this node delivers; None on a slave, and until all timers are read."""
    delivery: TimerDelivery | None
    """None on a slave, and without timerWheelEnable."""
    handover: TimerHandover | None
    """As above."""

    @classmethod
    def build(
        cls, config: BrokerConfig, store: MessageStore, *, puts: PutService, pending: PendingCounter
    ) -> Timers:
        """Dispatch of `store` tells the delivery from now on; `pending` counts what waits before."""
        settings = timer_settings(config)
        if puts.is_slave or not settings.is_enabled:
            messages = TimerMessages(
                settings, now_ms=wall_clock_ms, waiting=lambda _slot_ms: 0, broker_name=config.broker_name
            )
            return cls(messages, lambda: pending.timers_from_ms, lambda: None, None, None)
        delivery = TimerDelivery(store, puts, settings, count=pending.timers)
        store.dispatcher.on_written.add(delivery.arrived)
        handover = TimerHandover(
            config.store_path_root_dir,
            settings,
            timers=delivery.pending,
            unwritten=store.unwritten,
            now_ms=wall_clock_ms,
        )
        messages = TimerMessages(
            settings, now_ms=wall_clock_ms, waiting=delivery.waiting, broker_name=config.broker_name
        )
        return cls(messages, delivery.first_ms, delivery.pending, delivery, handover)

    def progress(self) -> TimerProgress:
        """How far delivery is."""
        return TimerProgress() if self.delivery is None else self.delivery.progress()

    async def run(self) -> None:
        """Deliver until cancelled; returns at once where nothing is delivered."""
        if self.delivery is not None and self.handover is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.delivery.run)
                nursery.start_soon(self.handover.run)
