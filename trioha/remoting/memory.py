"""The memory of a server for all its connections together.

Theory of operation. A connection holds bytes of three kinds: unfinished frames, requests that are being
handled, and answers that wait to be written. Each connection has an account of them; the sum of all accounts
never exceeds `bytes_max`. One rule limits a connection: it may hold as much as is left for the others (a
dynamic threshold, as switches share their buffers):

    held by the connection + more <= free - more

So N greedy connections settle at `bytes_max / (N + 1)` each. Two parts are kept from that. One eighth is for
connections that hold little: each may always hold its share, a `connections_max`-th of it, so that small
requests are read and answered at once. One sixteenth is for requests that were read, so that they can be
answered. If an answer does not fit, the server answers SYSTEM_BUSY instead.

A frame gets its memory as a whole: once its length has come, the connection reserves the rest of it, or reads
nothing more until it can. So frames never wait for each other half-read. Before a length has come, a read
beyond the share leaves room for the longest frame (`read_ahead_kept_bytes`): what connections hold of frames
that wait cannot keep all of them from being reserved.

What waits for something that may never come, as pulls at the ends of queues do, is set aside: it is counted
by itself, up to `bytes_max` again, and takes no room from what comes and goes. What does not fit there is
held as all else.

Requests free their memory at their own deadlines, answers when they are written or the connection is closed
at the send timeout, unfinished frames at the frame timeout. That is too late where frames are all that holds
the memory: when a connection has waited for room for `room_timeout_s`, connections that hold more than their
share and whose frame was read for as long are closed, and counted, the oldest frame first, until there is
room for the waiting one. A frame that makes progress while the memory has room is never ended here.

The system may have less memory than `bytes_max`. Unfinished frames leave `HEADROOM_BYTES` of it for all
else: before a connection continues to read one, `keep_headroom` closes connections, the one with the largest
unfinished frame first, until so much can be allocated. A connection that fails to allocate a read all the
same calls `make_room`: the connection with the largest unfinished frame is closed, if that frame is larger
than its own, and the read is tried again.

One connection alone may hold nearly half of the memory, which must therefore be at least `bytes_max_for` the
largest frame: then a single connection can always complete its frame and have it handled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio
from attrs import field, frozen

from trioha.remoting import system_memory
from trioha.remoting.system_memory import HEADROOM_BYTES

FRAMES_MIN: Final = 6
BYTES_MIN: Final = 64 * 1024
READ_BYTES_MIN: Final = 2048
"""Smallest read: a connection that may not receive so much waits for room."""
WAKE_BYTES_MIN: Final = 8192
"""A connection that waits for room to read continues when it may receive so much: more than each request of
the others holds and frees, which would otherwise wake all waiting connections."""


def bytes_max_for(frame_bytes_max: int) -> int:
    """The least memory of a server that accepts frames up to this size.

    With six frames, a single connection may read more than two, and the rest has room for the cost of a
    request with the largest header.
    """
    return FRAMES_MIN * frame_bytes_max + BYTES_MIN


class ClientMemory:
    """The memory that all connections of a server hold, and the connections that wait for room."""

    def __init__(
        self, bytes_max: int, *, connections_max: int, frame_bytes_max: int, room_timeout_s: float
    ) -> None:
        """`room_timeout_s`: how long a connection waits for room before unfinished frames are dropped."""
        self.bytes_max = bytes_max
        self.kept_bytes = bytes_max // 16
        """Kept from reading, for answers."""
        self.shared_bytes = bytes_max - self.kept_bytes - bytes_max // 8
        """For reading, shared by the dynamic threshold."""
        self.share_bytes = bytes_max // 8 // connections_max
        """What each connection may always hold."""
        self.read_ahead_kept_bytes = 2 * frame_bytes_max + bytes_max // 8
        """Part of `shared_bytes` for frames whose length is known: one of the largest, beside all shares."""
        self.held_bytes = 0
        """Sum of all accounts. Invariant: never more than `bytes_max`."""
        self.largest_held_bytes = 0
        """Largest value of `held_bytes` so far."""
        self.aside_bytes = 0
        """What all accounts have set aside. Invariant: never more than `bytes_max`."""
        self.waits = 0
        """How often a connection had to wait for room."""
        self._room_timeout_s = room_timeout_s
        self._accounts: set[MemoryAccount] = set()
        self._waiting: dict[MemoryAccount, _Wait] = {}
        self._wake_bytes: float = math.inf
        """The least that any waiting connection needs to continue."""

    @property
    def free_bytes(self) -> int:
        """Bytes that no connection holds."""
        return self.bytes_max - self.held_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes left of the shared part; may be negative."""
        return self.shared_bytes - self.held_bytes

    def open_account(self, give_up: Callable[[], None]) -> MemoryAccount:
        """The account of a new connection; `give_up` is called to have the connection closed.

        It must be closed with the connection.
        """
        account = MemoryAccount(self, give_up)
        self._accounts.add(account)
        return account

    def _close(self, account: MemoryAccount) -> None:
        self._accounts.discard(account)
        self._waiting.pop(account, None)

    async def _wait(self, account: MemoryAccount, needed_bytes: Callable[[], int]) -> None:
        """Wait until so many bytes are free; how many may change while it waits."""
        self.waits += 1
        try:
            while needed_bytes() > self.free_bytes:
                waiting = self._waiting[account] = _Wait(needed_bytes)
                self._wake_bytes = min(self._wake_bytes, needed_bytes())
                with trio.move_on_after(self._room_timeout_s):
                    await waiting.is_over.wait()
                if not waiting.is_over.is_set():
                    self._end_slow_frames(needed_bytes() - self.free_bytes)
        finally:
            self._waiting.pop(account, None)
            account.read_since_s = trio.current_time()

    def _freed(self, account: MemoryAccount) -> None:
        """Bytes of `account` came free: wake the connections that may continue."""
        if account in self._waiting:
            # It holds less, and so needs less.
            self._wake_bytes = min(self._wake_bytes, self._waiting[account].needed_bytes())
        free_bytes = self.free_bytes
        if free_bytes < self._wake_bytes:
            return
        self._wake_bytes = math.inf
        for other, waiting in self._waiting.items():
            needed_bytes = waiting.needed_bytes()
            if needed_bytes <= free_bytes:
                waiting.is_over.set()
                # It will use some of them.
                free_bytes -= max(WAKE_BYTES_MIN, other.missing_bytes)
            else:
                self._wake_bytes = min(self._wake_bytes, needed_bytes)

    async def _make_room(self, account: MemoryAccount) -> bool:
        largest = max(self._accounts, key=lambda other: other.unfinished_bytes, default=account)
        if largest.unfinished_bytes <= account.unfinished_bytes:
            return False
        largest.give_up()
        await largest.closed.wait()
        return True

    def _end_slow_frames(self, missing_bytes: int) -> None:
        """If frames hold the memory, close connections with slow ones, until so many bytes come free."""
        frames = [account for account in self._accounts if account.frame_bytes]
        frames_bytes = sum(account.unfinished_bytes + account.reserved_bytes for account in frames)
        if self.spare_bytes >= self.read_ahead_kept_bytes or 2 * frames_bytes < self.held_bytes:
            # There is room, or requests and answers hold most; they end by themselves.
            return
        slow_since_s = trio.current_time() - self._room_timeout_s
        for account in sorted(frames, key=lambda one: one.read_since_s):
            if missing_bytes <= 0 or account.read_since_s > slow_since_s:
                return
            holds_much = account.held_bytes > self.share_bytes
            if holds_much and account not in self._waiting and not account.is_given_up:
                missing_bytes -= account.held_bytes
                account.is_given_up = True
                account.give_up()


@frozen
class _Wait:
    """A connection that waits for room."""

    needed_bytes: Callable[[], int]
    """Bytes that must be free for it to continue."""
    is_over: trio.Event = field(factory=trio.Event)


class MemoryAccount:
    """The memory that one connection holds."""

    __slots__ = (
        "_memory",
        "aside_bytes",
        "closed",
        "frame_bytes",
        "give_up",
        "held_bytes",
        "is_given_up",
        "read_since_s",
        "reserved_bytes",
        "unfinished_bytes",
    )

    def __init__(self, memory: ClientMemory, give_up: Callable[[], None]) -> None:
        self._memory = memory
        self.give_up = give_up
        self.is_given_up = False
        """Whether it was closed for a slow frame."""
        self.closed = trio.Event()
        """Set by `close`."""
        self.held_bytes = 0
        """All bytes of the connection but those set aside. Changed by `change` only."""
        self.aside_bytes = 0
        """Bytes of the connection that are set aside. Changed by `set_aside` and `end_aside`."""
        self.unfinished_bytes = 0
        """Part of `held_bytes`: the received bytes of an unfinished frame."""
        self.frame_bytes = 0
        """Size of that frame, 4 until its length has come; 0 without a frame."""
        self.reserved_bytes = 0
        """Part of `held_bytes`: reserved for the rest of that frame."""
        self.read_since_s = 0.0
        """Since when that frame is read without waiting for room, on trio's clock."""

    @property
    def missing_bytes(self) -> int:
        """Bytes of the unfinished frame that are neither received nor reserved."""
        return max(0, self.frame_bytes - self.unfinished_bytes - self.reserved_bytes)

    def note_frame(self, unfinished_bytes: int, frame_bytes: int) -> None:
        """Note how much of an unfinished frame was received, and its size as far as that is known."""
        if not self.unfinished_bytes:
            self.read_since_s = trio.current_time()
        self.unfinished_bytes, self.frame_bytes = unfinished_bytes, frame_bytes

    def end_frame(self) -> None:
        """Note that the unfinished frame, if there was one, is complete, and free its reserve."""
        if not self.unfinished_bytes:
            return
        self.unfinished_bytes = self.frame_bytes = 0
        reserved_bytes, self.reserved_bytes = self.reserved_bytes, 0
        if reserved_bytes:
            self.change(-reserved_bytes)

    def receive(self, received_bytes: int) -> None:
        """Hold received bytes, from the reserve first."""
        reserved_bytes = min(received_bytes, self.reserved_bytes)
        self.reserved_bytes -= reserved_bytes
        self.change(received_bytes - reserved_bytes)

    def change(self, by_bytes: int) -> None:
        """Hold so many more bytes; fewer if negative."""
        memory = self._memory
        self.held_bytes += by_bytes
        memory.held_bytes += by_bytes
        if by_bytes < 0:
            if memory._waiting:
                memory._freed(self)
        elif memory.held_bytes > memory.largest_held_bytes:
            memory.largest_held_bytes = memory.held_bytes

    def set_aside(self, by_bytes: int) -> bool:
        """Set `by_bytes` more aside; False, with nothing changed, if they do not fit."""
        memory = self._memory
        if memory.aside_bytes + by_bytes > memory.bytes_max:
            return False
        self.aside_bytes += by_bytes
        memory.aside_bytes += by_bytes
        return True

    def end_aside(self, by_bytes: int) -> None:
        """Give back `by_bytes` that were set aside."""
        self.aside_bytes -= by_bytes
        self._memory.aside_bytes -= by_bytes

    def readable_bytes(self, wanted_bytes: int) -> int:
        """Bytes that may be received now, at most `wanted_bytes`; 0 if the connection must wait.

        The rest of an unfinished frame is reserved.
        """
        if missing_bytes := self.missing_bytes:
            if not self.fits(missing_bytes):
                return 0
            self.reserved_bytes += missing_bytes
            self.change(missing_bytes)
        memory = self._memory
        spare_bytes = (memory.spare_bytes - memory.read_ahead_kept_bytes - self.held_bytes) // 2
        if spare_bytes >= wanted_bytes:
            return wanted_bytes
        if self.reserved_bytes:
            return min(wanted_bytes, self.reserved_bytes)
        share_bytes = min(memory.share_bytes - self.held_bytes, memory.free_bytes - memory.kept_bytes)
        allowed_bytes = min(wanted_bytes, max(spare_bytes, share_bytes))
        return allowed_bytes if allowed_bytes >= min(READ_BYTES_MIN, wanted_bytes) else 0

    def fits(self, more_bytes: int) -> bool:
        """Whether there is room for so many more bytes, of a frame, a request or an answer."""
        return self._needed_bytes(more_bytes) <= self._memory.free_bytes

    def try_to_hold(self, more_bytes: int, *, is_only: bool) -> bool:
        """Hold what a request needs beside its frame while it is handled; False if there is no room.

        `is_only`: no other request of the connection is in flight; then it may use `kept_bytes`.
        """
        needed_bytes = more_bytes if is_only else self._needed_bytes(more_bytes)
        if needed_bytes > self._memory.free_bytes:
            return False
        self.change(more_bytes)
        return True

    async def wait_to_read(self) -> None:
        """Wait until the connection may be read from. Cancellation leaves nothing behind."""
        await self._memory._wait(self, self._needed_to_read)

    async def wait_to_handle(self, more_bytes: int, *, is_only: Callable[[], bool]) -> None:
        """Wait until a request that needs so many more bytes may be handled; see `try_to_hold`."""
        await self._memory._wait(self, lambda: more_bytes if is_only() else self._needed_bytes(more_bytes))

    async def keep_headroom(self) -> None:
        """Close connections with unfinished frames until the system has `HEADROOM_BYTES`.

        Raises MemoryError if this connection has the largest one.
        """
        while system_memory.may_refuse_memory() and not system_memory.can_allocate(HEADROOM_BYTES):
            if not await self.make_room():
                raise MemoryError("the system has no memory for the rest of an unfinished frame")

    async def make_room(self) -> bool:
        """Close the connection with the largest unfinished frame, and wait until it is closed.

        False, at once, if no other connection has a larger unfinished frame than this one.
        """
        return await self._memory._make_room(self)

    def close(self) -> None:
        """Free all bytes at the end of the connection."""
        self.closed.set()
        self.unfinished_bytes = self.frame_bytes = self.reserved_bytes = 0
        self._memory._close(self)
        self.end_aside(self.aside_bytes)
        self.change(-self.held_bytes)

    def _needed_bytes(self, more_bytes: int, *, kept_bytes: int = 0) -> int:
        """Bytes that must be free for the connection to hold so many more, beside `kept_bytes` for others."""
        memory = self._memory
        if self.held_bytes + more_bytes <= memory.share_bytes:
            return memory.kept_bytes + more_bytes
        return memory.bytes_max - memory.shared_bytes + kept_bytes + self.held_bytes + 2 * more_bytes

    def _needed_to_read(self) -> int:
        if missing_bytes := self.missing_bytes:
            return self._needed_bytes(missing_bytes)
        memory = self._memory
        if memory.share_bytes - self.held_bytes >= READ_BYTES_MIN:
            return self._needed_bytes(READ_BYTES_MIN)
        return self._needed_bytes(WAKE_BYTES_MIN, kept_bytes=memory.read_ahead_kept_bytes)
