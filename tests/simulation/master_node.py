"""The simulated master with its producers, and what must hold of every put."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import trio
from attrs import define, field

from tests.ha.support import slave_commit
from tests.simulation.acks import AckModel, copies_needed
from tests.simulation.determinism import stream_of
from tests.simulation.history import History
from tests.simulation.network import Link
from tests.simulation.node import Node, NodeSink
from tests.simulation.plan import Plan
from tests.simulation.slave_node import SlaveNode
from tests.simulation.trace import Trace
from tests.simulation.wire import FrameCheck
from trioha.broker.puts import PutResult, PutService
from trioha.ha.master import DefaultHaMaster, HaMaster
from trioha.ha.replicas import Replicas
from trioha.recording.events import CloseReason, Kind
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus

SAME_MOMENT_S = 1e-6
NOWHERE = -(1 << 62)
"""For a put that ends here every replica is in sync."""
IMPOSSIBLE_ENDS = frozenset(
    (CloseReason.ACK_BEYOND_SENT, CloseReason.ACK_WENT_BACK, CloseReason.BAD_SIZE, CloseReason.NO_REQUEST)
)
"""An honest slave never makes a master end a connection so (NO_REQUEST: only on a link that failed)."""


@define(eq=False)
class Put:
    """A put that waits for its answer."""

    number: int
    start_offset: int
    end_offset: int
    data: bytes
    started_s: float
    waits: bool
    need: int
    eligible: int
    witnesses: set[int]
    """Connections that had reported when it began to wait: their acks count for it in any case."""
    replicated_at_s: float | None = None
    """When the acknowledgements of the witnesses were enough."""
    replicated_at_best_s: float | None = None
    """When they would have been with those who came later and asked for the put's bytes."""
    held_before: set[str] = field(factory=set)
    """Slaves that held the record and lost it since: power loss, or set aside."""


class MasterNode(Node):
    """The master: replication, group commit and producers, from crash to crash."""

    def __init__(
        self,
        *,
        plan: Plan,
        folder: Path,
        history: History,
        trace: Trace,
        on_violation: Callable[[str], None],
        slaves: list[SlaveNode],
    ) -> None:
        super().__init__(
            "master",
            plan=plan,
            folder=folder,
            history=history,
            trace=trace,
            on_violation=on_violation,
            sync_flush=plan.group_commit.sync_flush,
        )
        self.statuses: Counter[str] = Counter()
        self.pending: list[Put] = []
        self.produces = True
        """Whether producers go on."""
        self.acks = AckModel(plan.gap_bytes_max)
        self._slaves = slaves
        self._puts_made = 0
        self._frame_checks: dict[str, FrameCheck] = {}
        self._nursery: trio.Nursery | None = None
        self._ha: HaMaster | None = None
        self._replicas: Replicas | None = None
        self._puts: PutService | None = None

    # -- life --------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        log = self.log
        if log.is_empty and not log.files and self.plan.first_offset:
            log.start_at(self.plan.first_offset)
        if self.lost_power:
            self.history.cut(log.max_offset)
        if log.max_offset != self.history.end_offset:
            self.fail(f"log ends at {log.max_offset}, {self.history.end_offset} were appended")
        self.acks = AckModel(self.plan.gap_bytes_max)

    async def _live(self) -> None:
        plan = self.plan
        sink = self._sink = NodeSink(self.name, self.trace, self._on_event)
        self._replicas = Replicas(gap_bytes_max=plan.gap_bytes_max)
        self._ha = DefaultHaMaster(
            commit_log=self.log,
            replicas=self._replicas,
            settings=plan.settings,
            sink=sink,
            distinct_by_connection=plan.distinct_by_connection,
        )
        group_commit = slave_commit(
            plan.group_commit,
            replicas=self._replicas,
            flushed=self.log.flushed,
            sink=sink,
            send_now=self._send_now,
        )
        self._puts = PutService(commit_log=self.log, group_commit=group_commit, sink=sink, is_slave=False)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._start_disk(nursery, interval_s=plan.master_flush_interval_s)
            for number in range(plan.producers):
                nursery.start_soon(self._produce, stream_of(plan.seed, f"producer {number} {self._starts}"))

    def _send_now(self, start_offset: int) -> None:
        # What is sent is compared with the history.
        self.history.grow(self.log)
        self._ha.send_now(start_offset)

    def _ended(self) -> None:
        self._nursery = None
        for put in self.pending:
            self.trace.note(self.name, f"put {put.number} stays unanswered")
        self.pending.clear()
        if self._ha.connections():
            self.fail(f"{len(self._ha.connections())} connections are left of a master that is down")
        if self._replicas.eligible_count(NOWHERE):
            self.fail("acknowledgements are left of connections that are gone")
        for k in range(1, len(self._slaves) + 1):
            self._check_waiters(self._replicas.copies(k), f"{k}-copies")
        self._ha = self._replicas = self._puts = None

    def accept(self, link: Link, slave: SlaveNode) -> None:
        """A slave's connection arrives at the HA port."""
        check = FrameCheck(self.history, file_bytes=self.plan.file_bytes, on_violation=self.fail)
        self._frame_checks[f"{slave.host}:{link.number}"] = check
        link.frames.on_sent = check.sent
        self._nursery.start_soon(self._serve, self._ha, link, slave.host)

    async def _serve(self, ha: HaMaster, link: Link, host: str) -> None:
        reason = await ha.serve_stream(link.far, host=host, port=link.number)
        if reason in IMPOSSIBLE_ENDS and not (reason is CloseReason.NO_REQUEST and link.was_hurt):
            self.fail(f"connection of {host} ended with {reason.name}")

    def _on_event(self, kind: int, conn: int, offset: int, flags: int) -> None:
        if kind == Kind.ACK:
            address = self._sink.addresses[conn]
            check = self._frame_checks[address]
            # The first report is a claim; the start of an empty slave promises nothing.
            starts = (self.plan.first_offset, check.named_offset)
            claims = conn not in self.acks.connections or offset in starts
            if not claims and offset > check.sent_offset:
                self.fail(f"took ack {offset} of {address}, sent was {check.sent_offset}")
            replica = f"{conn}" if self.plan.distinct_by_connection else address.partition(":")[0]
            max_offset = self.log.max_offset
            start_offset = offset or max_offset - max_offset % self.log.file_bytes
            self.acks.acknowledge(
                conn,
                replica=replica,
                offset=offset,
                is_behind=start_offset < max_offset,
                max_offset=max_offset,
            )
            for put in self.pending:
                self._note_copies(put)
        elif kind == Kind.TRANSFER:
            self.acks.sent(conn, max_offset=self.log.max_offset)
        elif kind == Kind.CLOSED:
            self.acks.forget(conn)

    @property
    def can_serve(self) -> bool:
        return self.is_up and self._nursery is not None

    def _note_copies(self, put: Put) -> None:
        """Note when the acknowledgements were enough for `put`."""
        acks, now_s = self.acks, trio.current_time()
        if put.replicated_at_s is None and acks.copies_at(put.end_offset, put.witnesses) >= put.need:
            put.replicated_at_s = now_s
        if put.replicated_at_best_s is None:
            later = set() if self.plan.distinct_by_connection else acks.who_asked_for(put.start_offset)
            if acks.copies_at(put.end_offset, put.witnesses | later) >= put.need:
                put.replicated_at_best_s = now_s

    # -- puts --------------------------------------------------------------------------------------------

    async def _produce(self, rng: random.Random) -> None:
        plan = self.plan
        while True:
            await trio.sleep(rng.expovariate(1 / plan.pause_s))
            if not self.produces:
                return
            size = round(plan.body_bytes_max ** rng.random())
            if rng.random() < 0.02:
                # Nearly a file, or more than fits one.
                size = plan.file_bytes - rng.randint(0, 400)
            message = Message(
                topic=f"Topic{rng.randint(0, 2)}",
                queue_id=rng.randint(0, 3),
                body=rng.randbytes(size),
                properties=b""
                if rng.random() < 0.5
                else b"KEYS\x01" + rng.randbytes(4).hex().encode() + b"\x02",
            )
            await self.put(message, wait_store_ok=rng.random() > 0.05)

    async def put(self, message: Message, *, wait_store_ok: bool) -> PutStatus:
        """Store a message and check its answer in every respect."""
        settings = self.plan.group_commit
        log = self.log
        self._puts_made += 1
        number = self._puts_made
        refused = settings.copies_min > 0 and self.acks.in_sync(log.max_offset) < settings.copies_min
        before_offset = log.max_offset
        outcome = self._puts.put_and_wait(message) if wait_store_ok else self._puts.put(message)
        end_offset = log.max_offset
        if refused and end_offset != before_offset:
            self.fail(f"put {number} was stored with too few replicas in sync")
        if end_offset == before_offset:
            assert isinstance(outcome, PutResult)
            self._check_refusal(number, outcome, refused=refused)
            self.statuses[outcome.status.name] += 1
            return outcome.status
        self.history.grow(log)
        # A blank before the record, at the end of the previous file, does not belong to it.
        file_start = (end_offset - 1) - (end_offset - 1) % log.file_bytes
        start_offset = max(before_offset, file_start)
        eligible = need = 0
        if wait_store_ok and settings.copies_needed:
            eligible = self.acks.eligible(end_offset)
            need = copies_needed(settings, in_sync=self.acks.in_sync(end_offset))
        put = Put(
            number=number,
            start_offset=start_offset,
            end_offset=end_offset,
            data=self.history.part(start_offset, end_offset),
            started_s=trio.current_time(),
            waits=wait_store_ok,
            need=need,
            eligible=eligible,
            witnesses=self.acks.connections,
        )
        self.trace.note(self.name, f"put {number} [{start_offset}, {end_offset}) {need=} {eligible=}")
        self.pending.append(put)
        self._note_copies(put)
        # Cancelled where the master crashes: its client sees the connection end.
        if isinstance(outcome, PutResult):
            result = outcome
        else:
            await outcome.settled()
            result = self._puts.result(outcome)
        self.pending.remove(put)
        self.statuses[result.status.name] += 1
        self.trace.note(self.name, f"put {number} {result.status.name}")
        self._check_answer(put, result)
        return result.status

    def _check_refusal(self, number: int, result: PutResult, *, refused: bool) -> None:
        expected = PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH if refused else PutStatus.MESSAGE_ILLEGAL
        if result.status is not expected:
            self.fail(f"put {number} stored nothing: {result.status.name}, not {expected.name}")

    def note_loss(self, slave: SlaveNode) -> None:
        """`slave` is about to lose bytes: what it holds now it has held."""
        for put in self.pending:
            if slave.holds(put.start_offset, put.data, flushed=slave.acks_flushed):
                put.held_before.add(slave.name)

    def check_deadlines(self) -> None:
        """No put waits longer than its settings allow."""
        settings = self.plan.group_commit
        longest_s = settings.slave_timeout_s if settings.copies_needed else 0.0
        if settings.sync_flush:
            longest_s = max(longest_s, settings.sync_flush_timeout_s)
        for put in self.pending:
            if trio.current_time() > put.started_s + longest_s + SAME_MOMENT_S:
                self.fail(f"put {put.number} has no answer after {trio.current_time() - put.started_s:.3f} s")

    def _check_answer(self, put: Put, result: PutResult) -> None:
        settings = self.plan.group_commit
        number = put.number
        now_s = trio.current_time()
        waited_s = now_s - put.started_s
        if result.append.end_offset != put.end_offset:
            self.fail(f"put {number} ends at {result.append.end_offset}, the log at {put.end_offset}")
        self.check_deadlines()
        sync_flush = settings.sync_flush and put.waits
        match result.status:
            case PutStatus.PUT_OK:
                self._check_copies(put)
                if sync_flush and self.log.flushed.offset < put.end_offset:
                    self.fail(f"put {number} is PUT_OK and not on disk")
                replicated_at_s = put.replicated_at_s
                if put.replicated_at_best_s is None:
                    self.fail(f"put {number} is PUT_OK, acknowledged by too few")
                if replicated_at_s is not None and not sync_flush and now_s > replicated_at_s + SAME_MOMENT_S:
                    self.fail(f"put {number} was replicated at {replicated_at_s}, and not woken")
            case PutStatus.SLAVE_NOT_AVAILABLE:
                if put.eligible >= put.need:
                    self.fail(f"put {number}: no slave, but {put.eligible} of {put.need} are in sync")
                if not sync_flush and waited_s > SAME_MOMENT_S:
                    self.fail(f"put {number} waited {waited_s} s for the answer that there is no slave")
            case PutStatus.FLUSH_SLAVE_TIMEOUT:
                if waited_s < settings.slave_timeout_s - SAME_MOMENT_S:
                    self.fail(f"put {number} timed out after {waited_s} s")
                deadline_s = put.started_s + settings.slave_timeout_s
                if put.replicated_at_s is not None and put.replicated_at_s < deadline_s - SAME_MOMENT_S:
                    self.fail(f"put {number} timed out, but was replicated at {put.replicated_at_s}")
            case PutStatus.FLUSH_DISK_TIMEOUT:
                if not sync_flush or waited_s < settings.sync_flush_timeout_s - SAME_MOMENT_S:
                    self.fail(f"put {number}: disk timeout after {waited_s} s")
            case status:
                self.fail(f"put {number} was stored and answered {status.name}")

    def _check_copies(self, put: Put) -> None:
        """PUT_OK: so many slaves that are no observers hold the bytes, in the way they promise it."""
        holders = set(put.held_before)
        for slave in self._slaves:
            if not slave.slave_plan.is_observer and slave.holds(
                put.start_offset, put.data, flushed=slave.acks_flushed
            ):
                holders.add(slave.name)
        if len(holders) < put.need:
            self.fail(
                f"put {put.number} [{put.start_offset}, {put.end_offset}) is PUT_OK, "
                f"{put.need} copies were needed, {sorted(holders)} hold it"
            )
