"""The parts of a node for transactions. A slave has a handler that refuses decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import frozen

from trioha.broker.clients import ClientRegistry
from trioha.broker.puts import PutService
from trioha.broker.timer_messages import TimerMessages
from trioha.broker.transaction_processor import TransactionProcessor
from trioha.broker.transaction_service import TransactionService
from trioha.broker.transaction_settings import TransactionSettings
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.metadata.metadata_store import MetadataStore
from trioha.remoting.codes import RequestCode
from trioha.remoting.connections import Connections
from trioha.remoting.serving import Handler
from trioha.store.consume_queues import Queue
from trioha.store.message_store import MessageStore
from trioha.store.messages import Message
from trioha.store.topics import HALF_TOPIC


@frozen
class Transactions:
    """The parts that serve producers of transactions."""

    service: TransactionService | None
    """None on a slave."""
    handlers: Mapping[int, Handler]
    """By request code."""

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        *,
        metadata: MetadataStore,
        clients: ClientRegistry,
        puts: PutService,
        timers: TimerMessages,
        connections: Connections,
        held_offset: Callable[[], int],
    ) -> Transactions:
        """Dispatch of `store` gives half messages to the service from now on.

        Producers are asked by `connections`, those of the server.
        `held_offset`: the end of what each slave has that may become master.
        """
        service = None
        if config.broker_role is not BrokerRole.SLAVE:
            service = TransactionService(
                store,
                metadata,
                clients,
                puts,
                settings=transaction_settings(config),
                timers=timers,
                push=partial(connections.push, may_wait=True),
                held_offset=held_offset,
            )
            _follow_dispatch(store, service)
        processor = TransactionProcessor(service)
        return cls(service, {RequestCode.END_TRANSACTION: processor.answer})

    @property
    def prepare(self) -> Callable[[Message], Message]:
        """Makes half messages of sends; a slave, which refuses all puts, leaves them as they are."""
        return _unchanged if self.service is None else self.service.prepare

    def configure(self, config: BrokerConfig) -> None:
        """Handle further transactions as `config` says; rounds of checks keep their interval."""
        if self.service is not None:
            self.service.configure(transaction_settings(config))

    async def run(self) -> None:
        """Check transactions until cancelled; returns at once on a slave."""
        if self.service is not None:
            await self.service.run()


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """Settings of transactions."""
    return TransactionSettings(
        broker_name=config.broker_name,
        broker_ip=config.broker_ip1,
        timeout_ms=config.transaction_time_out,
        check_interval_s=config.transaction_check_interval / 1000,
        check_max=config.transaction_check_max,
        is_rejecting=config.reject_transaction_message,
        op_interval_s=config.transaction_op_batch_interval / 1000,
        op_bytes_max=config.transaction_op_msg_max_size,
        open_max=config.open_transactions_max,
        reserved_ms=config.file_reserved_time * 3_600_000,
    )


def _unchanged(message: Message) -> Message:
    return message


def _follow_dispatch(store: MessageStore, service: TransactionService) -> None:
    """Report written half messages to the service."""

    def on_written(queues: Sequence[Queue]) -> None:
        for queue in queues:
            if queue.topic == HALF_TOPIC:
                service.stored(queue.max_offset)

    store.dispatcher.on_written.add(on_written)
