"""What stands in for sockets, clients and worker threads around the node's own code."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import patch

import trio

from tests.simulation.failover.broker import CLIENT_PORT, Broker, Life, Sink
from tests.simulation.failover.processes import CURRENT, Crash, hanging_enabled
from tests.simulation.history import bytes_of
from tests.simulation.network import Link
from trioha.broker.puts import PutService
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.ha import master as ha_master
from trioha.ha.autoswitch.master import AutoSwitchMaster
from trioha.node import controlled_replication, replication, term
from trioha.node.metadata import MetadataCopy
from trioha.node.replication import Replication
from trioha.node.roles import Control
from trioha.recording.events import EventSink
from trioha.remoting.address import Address
from trioha.remoting.serving import Handler
from trioha.store import lock
from trioha.store.commit_log import CommitLog
from trioha.store.cutting import Cutter
from trioha.store.message_store import MessageStore
from trioha.store.retention import Retention

SYNCS_OF_CUT = 9
"""An interruption after as many syncs, or more, comes when the cut is over."""


def current() -> Broker:
    """The broker whose task runs."""
    broker = CURRENT.get()
    assert isinstance(broker, Broker), "only a broker's task gets here"
    return broker


class _Clients:
    """In place of the server for clients: producers, which put messages."""

    def __init__(self, broker: Broker, life: Life) -> None:
        self._broker = broker
        self._life = life

    connections = SimpleNamespace(push=None)
    """Nobody is subscribed."""

    async def serve_listeners(
        self, _listeners: Sequence[object], *, gate: object, task_status: trio.TaskStatus[Any]
    ) -> None:
        broker, life = self._broker, self._life
        broker.life = life
        broker.world.life_began(broker, life)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(broker.world.plan.producers):
                    nursery.start_soon(broker.produce, life)
                task_status.started([(broker.host, CLIENT_PORT)])
                await trio.sleep_forever()
        finally:
            life.is_over = True
            if broker.life is life:
                broker.life = None

    async def drain(self, *, timeout_s: float) -> None:
        """Wait for the answers of the puts that wait."""
        with trio.move_on_after(timeout_s):
            while self._broker.pending:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def _wait_for_ever(*_: object) -> None:
    await trio.sleep_forever()


class _BrokerService:
    """In place of what serves clients."""

    @staticmethod
    def build(
        config: BrokerConfig,
        store: MessageStore,
        *,
        ha: Replication,
        sink: EventSink,
        handlers: Mapping[int, Handler],
        **_: object,
    ) -> Any:
        broker = current()
        puts = PutService(
            commit_log=store.commit_log,
            group_commit=ha.group_commit,
            sink=sink,
            is_slave=config.broker_role is BrokerRole.SLAVE,
        )
        life = Life(config, ha, puts, broker.next_role, handlers)
        settings = SimpleNamespace(config=config)
        return SimpleNamespace(
            info=SimpleNamespace(ha_status=None),
            server=_Clients(broker, life),
            puts=puts,
            updates=SimpleNamespace(run=_wait_for_ever),
            consumers=SimpleNamespace(run=_wait_for_ever, polls=SimpleNamespace(end_all=lambda: None)),
            delivery=None,
            timers=SimpleNamespace(run=_wait_for_ever),
            pops=SimpleNamespace(run=_wait_for_ever, end_all=lambda: None),
            admin=SimpleNamespace(run=_wait_for_ever, config=settings),
            transactions=SimpleNamespace(run=_wait_for_ever),
        )


_control_handlers = term._control_handlers


def _noted_handlers(
    config: BrokerConfig, store: MessageStore, control: Control | None, *, ha_address: Address
) -> Mapping[int, Handler]:
    current().next_role = control.role
    return _control_handlers(config, store, control, ha_address=ha_address)


class _MetadataCopy:
    """In place of the copies of metadata: none are made."""

    @staticmethod
    def build(*_: object, **__: object) -> MetadataCopy:
        return MetadataCopy(None)


@asynccontextmanager
async def _recording(_config: BrokerConfig, **_: object) -> AsyncIterator[tuple[EventSink, Path | None]]:
    broker = current()
    await trio.lowlevel.checkpoint()
    yield Sink(broker.name, broker.world.trace, lambda *_: None), None
    broker.world.life_ended(broker)


async def _serve_listeners(
    handler: Callable[..., Any],
    listeners: Sequence[Any],
    *,
    gate: object,
    boundary: object,
    task_status: trio.TaskStatus[Any],
) -> NoReturn:
    """Accept slaves' links, in place of sockets."""
    (port,) = listeners
    master = handler.__self__
    assert isinstance(master, AutoSwitchMaster)
    async with trio.open_nursery() as nursery:
        task_status.started(listeners)
        while True:
            nursery.start_soon(_serve_link, master, await port.next())


async def _serve_link(master: AutoSwitchMaster, link: Link) -> None:
    try:
        reason = await master.serve_stream(link.far, host="10.0.0.9", port=link.number)
        current().world.connection_ended(current(), link, reason)
    finally:
        await trio.aclose_forcefully(link.far)


async def _connect(location: Any, _tls: object, dialing: Callable[[str], None]) -> trio.abc.Stream:
    address = await location.resolve()
    dialing(str(location))
    return await current().world.connect_slave(current(), address.host)


async def _fetch_ha_address(address: str, *, security: object, timeout_s: float = 1.0) -> str:
    return await current().world.ask_ha_address(current(), address, timeout_s=timeout_s)


async def _no_retention(_: Retention) -> None:
    await trio.sleep_forever()


def _synced(real: Callable[[int], None]) -> Callable[[int], None]:
    """A sync reaches the disk of the process that asks for it, unless that ends just before."""

    def sync(fd: int) -> None:
        broker = CURRENT.get()
        if broker is None:
            return real(fd)
        if broker.interrupts_cut is not None and broker.is_up:
            left, power = broker.interrupts_cut
            if left == 0:
                broker.interrupts_cut = None
                broker.crash(power=power, restart_after_s=broker.world.restart_s())
                raise Crash
            broker.interrupts_cut = (left - 1, power)
        if broker.is_up or broker.store is None:
            broker.disk.synced(fd)
        return None

    return sync


_cut_steps = Cutter.steps
_archive = CommitLog.archive


def _checked_cut(cutter: Cutter, offset: int) -> Iterator[Callable[[], None]]:
    broker = current()
    log = broker.store.commit_log
    data = bytes_of(log, 0, log.max_offset)
    broker.note(f"cut at {offset} of {len(data)}")
    broker.world.log_cut(broker, offset, data)
    broker._data_before_cut = data
    broker.cuts_to = offset
    later, broker.interrupts_cut = _split(broker.interrupts_cut)
    steps = _cut_steps(cutter, offset)
    for step in steps:
        yield partial(_closing_at_crash, step, steps)
    broker.cuts_to = None
    # Faults may have ended meanwhile.
    broker.interrupts_cut = None if broker.world.controllers.is_calm else later
    if log.max_offset != offset or log.flushed.offset != offset:
        broker.fail(f"cut at {offset}, ends at {log.max_offset}, on disk is {log.flushed.offset}")


def _closing_at_crash(step: Callable[[], None], steps: Iterator[Callable[[], None]]) -> None:
    """A step of a cut; descriptors that a crash leaves with the iterator are closed, as its process is."""
    try:
        step()
    except Crash:
        cast("Generator[object, None, None]", steps).close()
        raise


def _split(interruption: tuple[int, bool] | None) -> tuple[tuple[int, bool] | None, tuple[int, bool] | None]:
    """An interruption after the cut, and one in the middle of it: one of them, or none."""
    if interruption is None:
        return None, None
    syncs, power = interruption
    later = 0 if current().world.plan.interrupts_cuts else syncs - SYNCS_OF_CUT
    return ((later, power), None) if syncs >= SYNCS_OF_CUT else (None, interruption)


def _boot_id() -> str:
    """A machine that lost power has started anew. Stores are examined on a machine of their own."""
    broker = CURRENT.get()
    return "another machine" if broker is None else f"{broker.name} start {broker.boots}"


def _checked_archive(log: CommitLog, directory: Path) -> None:
    broker = current()
    broker.note(f"log of {log.max_offset} bytes set aside")
    broker.world.log_set_aside(broker, bytes_of(log, 0, log.max_offset))
    _archive(log, directory)


@contextmanager
def simulated_surroundings() -> Iterator[None]:
    """Inside, the code of nodes runs in the simulated world."""
    replaced: list[tuple[object, str, object]] = [
        (term, "BrokerService", _BrokerService),
        (term, "_control_handlers", _noted_handlers),
        (term, "MetadataCopy", _MetadataCopy),
        (term, "recording", _recording),
        (term, "import_late", partial(_wait_for_ever)),
        (replication, "_connect", _connect),
        (controlled_replication, "fetch_ha_address", _fetch_ha_address),
        (ha_master, "serve_listeners", _serve_listeners),
        (Retention, "run", _no_retention),
        (trio.from_thread, "check_cancelled", lambda: None),
        (os, "fsync", _synced(os.fsync)),
        (os, "fdatasync", _synced(os.fdatasync)),
        (Cutter, "steps", _checked_cut),
        (CommitLog, "archive", _checked_archive),
        (lock, "boot_id", _boot_id),
    ]
    with ExitStack() as stack:
        stack.enter_context(hanging_enabled())
        for owner, name, new in replaced:
            stack.enter_context(patch.object(owner, name, new))
        yield
