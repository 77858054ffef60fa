"""A simulated slave, and what must hold of its log and its reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio

from tests.simulation.history import History, bytes_of
from tests.simulation.network import Link
from tests.simulation.node import Node, NodeSink, Snapshot
from tests.simulation.plan import Plan, SlavePlan
from tests.simulation.trace import Trace
from tests.simulation.wire import FrameReader, ReportReader
from trioha.config.keys.ha import AckMode
from trioha.ha.link import GAP_REASONS
from trioha.ha.slave import HaSlave
from trioha.recording.events import CloseReason, Kind

IMPOSSIBLE_ENDS = frozenset((CloseReason.BAD_SIZE, CloseReason.BAD_RECORD, CloseReason.STORE_ERROR))
"""Reasons for which no fault of a master or slave may make the slave end a connection."""
MISFITS = GAP_REASONS | {CloseReason.OFFSET_MISMATCH}
"""Ends that say that the logs do not fit."""


class SlaveNode(Node):
    """A slave of the simulated master."""

    def __init__(
        self,
        number: int,
        slave_plan: SlavePlan,
        *,
        plan: Plan,
        folder: Path,
        history: History,
        trace: Trace,
        on_violation: Callable[[str], None],
        connect: Callable[[SlaveNode], Awaitable[trio.abc.Stream]],
        on_loss: Callable[[SlaveNode], None],
    ) -> None:
        super().__init__(
            f"slave{number}",
            plan=plan,
            folder=folder,
            history=history,
            trace=trace,
            on_violation=on_violation,
            sync_flush=slave_plan.acks is AckMode.FLUSHED,
        )
        self.host = f"10.0.1.{number}"
        self.slave_plan = slave_plan
        self.unreachable_until_s = 0.0
        self.slave: HaSlave | None = None
        self._connect = connect
        self._on_loss = on_loss
        """Told before bytes that the slave may have acknowledged are lost."""
        self._asides: list[tuple[Path, Snapshot]] = []
        self._checked_start = self._checked_end = 0
        self._checked_version = -1
        """History against which all of the checked bytes were compared; -1 for none since the start."""
        self._judged: tuple[object, ...] = ()
        """State in which the verdict was found right."""

    @property
    def acks_flushed(self) -> bool:
        """Whether its reports promise what is on disk."""
        return self.slave_plan.acks is AckMode.FLUSHED

    @property
    def verdict(self) -> str:
        """Why it says that it cannot follow; empty if it can, or is down."""
        return self.slave.status().verdict if self.slave is not None else ""

    @property
    def waits_for_start(self) -> bool:
        """Whether it is to begin at an offset that the master has not reached."""
        start = self.slave_plan.replication.start
        return isinstance(start, int) and self.log.is_empty and start >= self.history.end_offset

    def crash(self, *, power: bool, restart_after_s: float) -> None:
        if power and self.is_up:
            self._on_loss(self)
        super().crash(power=power, restart_after_s=restart_after_s)

    def _opened(self) -> None:
        log = self.log
        self._checked_start, self._checked_end = log.min_offset, log.max_offset
        self._checked_version = -1
        archive = log.archive
        log.archive = partial(self._archive, archive)

    async def _live(self) -> None:
        plan = self.slave_plan
        sink = NodeSink(self.name, self.trace, self._on_event)
        self.slave = HaSlave(
            master_address="10.0.0.1:10912",
            connect=lambda _dialing: self._connect(self),
            commit_log=self.log,
            settings=self.plan.settings,
            sink=sink,
            replication=plan.replication,
            ack_mode=plan.acks,
            is_observer=plan.is_observer,
            gap_policy=plan.gap_policy,
        )
        async with trio.open_nursery() as nursery:
            self._start_disk(nursery, interval_s=self.plan.slave_flush_interval_s)
            nursery.start_soon(self.slave.run)

    def _ended(self) -> None:
        self.check()
        self.slave = None

    def _on_event(self, kind: int, conn: int, offset: int, flags: int) -> None:
        if kind == Kind.CLOSED:
            reason = CloseReason(flags)
            if reason in IMPOSSIBLE_ENDS:
                self.fail(f"connection ended with {reason.name}")
            if self.history.version == 0 and not self.log.is_empty and reason in MISFITS:
                self.fail(f"connection ended with {reason.name}, but the master never lost a byte")

    def _archive(self, archive: Callable[[Path], None], directory: Path) -> None:
        """Before the log is replaced: it must be no prefix of the master's; and it must stay as it is."""
        log = self.log
        self.check()
        snapshot = Snapshot.of(log)
        self.trace.note(self.name, f"log [{log.min_offset}, {log.max_offset}) set aside")
        if self.history.holds(snapshot.start_offset, snapshot.data):
            self.fail(f"set aside a good log, [{snapshot.start_offset}, {snapshot.end_offset})")
        self._on_loss(self)
        archive(directory)
        self._asides.append((directory, snapshot))
        self._checked_start = self._checked_end = 0

    @property
    def is_verified(self) -> bool:
        """Whether all of the log was compared with the master's as it is now."""
        return self._checked_version == self.history.version and self._checked_end == self.log.max_offset

    # -- invariants --------------------------------------------------------------------------------------

    def check(self) -> None:
        """The log is whole records of the master's, however it got here; nothing diverged was extended."""
        if not self.is_up:
            return
        log, history = self.log, self.history
        start, end = log.min_offset, log.max_offset
        if log.flushed.offset > end:
            self.fail(f"flushed {log.flushed.offset} of a log that ends at {end}")
        known = start == self._checked_start and end >= self._checked_end
        if known and end == self._checked_end:
            return
        if not known and start != end and self._checked_start != self._checked_end:
            self.fail(
                f"bytes are gone: log was [{self._checked_start}, {self._checked_end}), is [{start}, {end})"
            )
        since = self._checked_end if known and self._checked_version == history.version else start
        if not history.holds(since, bytes_of(log, since, end)):
            self.fail(f"log [{start}, {end}) grew and is not the master's, behind {since}")
        if start != end and end not in history.boundaries:
            self.fail(f"log ends at {end}, inside a record")
        self._checked_start, self._checked_end = start, end
        self._checked_version = history.version

    def check_verdict(self) -> None:
        """A slave that says it cannot follow is right."""
        if not self.is_up:
            return
        state = (self.log.min_offset, self.log.max_offset, self.history.version, self.verdict)
        if state == self._judged or (self.is_verified and not self.verdict):
            return
        self._judged = state
        snapshot = Snapshot.of(self.log)
        if not self.history.held(snapshot.start_offset, snapshot.data):
            self.fail("holds bytes that no master ever had")
        # Of an empty log it says that the master does not reach to its start yet.
        if (
            self.verdict
            and not self.log.is_empty
            and self.history.holds(snapshot.start_offset, snapshot.data)
        ):
            self.fail(f"log [{snapshot.start_offset}, {snapshot.end_offset}) is good, verdict {self.verdict}")

    def check_asides(self) -> None:
        """Logs that were set aside are as they were."""
        for directory, snapshot in self._asides:
            files = sorted(file for file in directory.iterdir() if file.name.isdecimal())
            first_offset = int(files[0].name) if files else 0
            data = b"".join(file.read_bytes() for file in files)
            at = snapshot.start_offset - first_offset
            if data[at : at + len(snapshot.data)] != snapshot.data:
                self.fail(f"the log set aside as {directory.name} changed")


class ReportCheck:
    """What a slave reports over one link: never more than it was sent, holds, and may promise."""

    def __init__(self, node: SlaveNode, link: Link) -> None:
        self._node = node
        self._link = link
        self._reports = ReportReader()
        self._frames = FrameReader()
        self._request_offset: int | None = None
        self._last_offset = -1

    def received(self, data: bytes) -> None:
        self._frames.feed(data)

    def sent(self, data: bytes) -> None:
        for offset in self._reports.feed(data):
            self._report(offset)

    def _report(self, offset: int) -> None:
        node = self._node
        node.check()
        log = node.log
        node.trace.note(node.name, f"link {self._link.number} report {offset}")
        if self._request_offset is None:
            self._request_offset = self._last_offset = offset
            if offset > log.max_offset and not log.is_empty:
                node.fail(f"asked for {offset}, its log ends at {log.max_offset}")
            return
        if offset < self._last_offset:
            node.fail(f"reported {offset} after {self._last_offset}")
        self._last_offset = offset
        if offset == self._request_offset:
            return
        if node.slave_plan.is_observer:
            node.fail(f"an observer acknowledged {offset}")
        if offset > log.max_offset:
            node.fail(f"acknowledged {offset}, its log ends at {log.max_offset}")
        if node.acks_flushed and offset > log.flushed.offset:
            node.fail(f"acknowledged {offset}, on disk is {log.flushed.offset}")
        delivered_offset = self._frames.end_offset
        if not log.is_empty and (delivered_offset is None or offset > delivered_offset):
            node.fail(f"acknowledged {offset}, received was {delivered_offset}")
        if not node.is_verified and not node.history.held(
            log.min_offset, bytes_of(log, log.min_offset, offset)
        ):
            node.fail(f"acknowledged {offset} of a log that is not the master's")
