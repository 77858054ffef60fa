"""The lease of an archive: which writer creates its heads.

A writer takes an archive over by a head of its own, with an epoch that is one more and a token that it draws.
From then on each of its heads follows the one before by number, and a head of another writer fences it. A
writer whose request has failed does not know whether its head was created: `settle` finds out.
"""

from __future__ import annotations

import secrets
import socket
from typing import Final

from attrs import evolve

from trioha.archive.context import ArchiveContext
from trioha.archive.errors import ArchiveError, FencedError
from trioha.archive.heads import create_head, fenced_by, read_head
from trioha.archive.layout import Head, Writer

CLUSTER_DEFAULT: Final = "DefaultCluster"
"""RocketMQ's own default of brokerClusterName; that of brokerName is the host's name."""
_WATCH_POLL_S: Final = 5.0


class Lease:
    """One writer's lease: `begin`, then `publish` heads. Everything here blocks."""

    def __init__(self, context: ArchiveContext, *, writer_id: str) -> None:
        self._context = context
        self._folder = context.folder
        self._writer_id = writer_id
        self._published_s = 0.0
        self._head: Head | None = None

    @property
    def head(self) -> Head | None:
        """The newest head; None before `begin`."""
        return self._head

    def begin(self, *, cluster_name: str | None, broker_name: str | None, take_over: bool) -> Head:
        """Replace the archive's head by one of this writer.

        Names that are None are those of the archive. A writer of another host or store is watched for
        `settings.watch_s`, unless this one is to `take_over`. Raises FencedError if it creates a head,
        ArchiveError.
        """
        before = read_head(self._folder)
        self._context.clock.begin(None if before is None else before.writer.renewed_ms)
        now_ms = self._context.clock.now_ms()
        writer = Writer(
            id=self._writer_id,
            epoch=1 if before is None else before.writer.epoch + 1,
            since_ms=now_ms,
            renewed_ms=now_ms,
            token=secrets.token_hex(4),
        )
        if before is None:
            head = Head(
                number=1,
                cluster_name=CLUSTER_DEFAULT if cluster_name is None else cluster_name,
                broker_name=socket.gethostname() if broker_name is None else broker_name,
                writer=writer,
                generations=(),
            )
        else:
            self._check_name("cluster", ours=cluster_name, theirs=before.cluster_name)
            self._check_name("broker", ours=broker_name, theirs=before.broker_name)
            if before.writer.id != writer.id and not take_over:
                self._watch(before)
            head = evolve(before, number=before.number + 1, writer=writer)
        self._create(head)
        return head

    def _check_name(self, what: str, *, ours: str | None, theirs: str) -> None:
        if ours not in {None, theirs}:
            raise ArchiveError(
                f"is the archive of {what} {theirs}, not of {ours}",
                url=self._folder.url,
                hint="give each broker a URL of its own",
            )

    def _watch(self, head: Head) -> None:
        context = self._context
        end_s = context.monotonic() + context.settings.watch_s
        context.notify(
            f"{head.writer.id} has archived here: waiting {context.settings.watch_s:.0f} s for a sign of it"
        )
        while context.monotonic() < end_s:
            context.sleep(_WATCH_POLL_S)
            if context.is_stopping():
                raise ArchiveError("stopped before it took over", url=self._folder.url, is_transient=True)
            newest = read_head(self._folder)
            if newest is None or newest.number != head.number:
                raise fenced_by(self._folder, newest)

    def is_due(self, head: Head) -> bool:
        """Whether `head` is to be published: it has something new, or the last one is old."""
        return (
            head != self._head
            or self._context.monotonic() - self._published_s >= self._context.settings.renew_s
        )

    def publish(self, head: Head) -> Head:
        """Create `head` under the next number, renewed now, and return it. Raises ArchiveError."""
        assert self._head is not None, "begin is called first"
        head = evolve(
            head,
            number=self._head.number + 1,
            writer=evolve(self._head.writer, renewed_ms=self._context.clock.now_ms()),
        )
        try:
            self._create(head)
        except FencedError:
            newest = read_head(self._folder)
            if newest is None or not self._is_ours(newest):
                raise
            # An earlier request, whose answer was lost, was carried out late.
            raise ArchiveError(
                "an earlier request was carried out late", url=self._folder.url, is_transient=True
            ) from None
        return head

    def settle(self) -> Head:
        """Find out whether the last head was created; the newest one. Raises FencedError, ArchiveError."""
        newest = read_head(self._folder)
        if newest is None or not self._is_ours(newest):
            raise fenced_by(self._folder, newest)
        self._head = newest
        return newest

    def _create(self, head: Head) -> None:
        create_head(self._folder, head)
        self._head = head
        self._published_s = self._context.monotonic()

    def _is_ours(self, head: Head) -> bool:
        assert self._head is not None, "begin is called first"
        ours = self._head.writer
        return (head.writer.id, head.writer.epoch, head.writer.token) == (ours.id, ours.epoch, ours.token)
