"""The memory of a server for all its connections together.

Theory of operation. A connection holds bytes of three kinds: unfinished frames, requests that are being
handled, and answers that wait to be written. Each connection has an account of them; the sum of all accounts
never exceeds `bytes_max`. There is no queue for memory: a connection is read from only while it holds less
than what is free (a dynamic threshold, as switches share their buffers):

    held by the connection + next read <= free - next read

So reading stops first from the connections that hold most, and N greedy connections settle at `bytes_max / (N
+ 1)` each. Two parts are kept from that. One eighth is for connections that hold little: each may always hold
its share, a `connections_max`-th of it, so that small requests are read at once. One sixteenth is for
requests that were read, so that they can be answered. An answer that is larger than what its request held is
subject to the same rule as a read; if it does not fit, the server answers SYSTEM_BUSY instead.

Requests free their memory at their own deadlines, answers when they are written or the connection is closed
at the send timeout. An unfinished frame does not: many of them can fill the memory so that none is ever
complete, since each connection waits for room that only another one could free. Therefore, when a connection
has waited for room for `room_timeout_s` and unfinished frames hold most of the memory, connections with an
unfinished frame are closed, and counted, until the other waiting frames fit: first those that were read from
for `room_timeout_s` and did not complete their frame, the largest and oldest first; then those that wait for
room themselves, the largest and newest first. The last one stays. Each remaining frame gets a reserve for its
rest as soon as that is free, before other connections may read: new connections cannot use it. A frame that
makes progress while the memory has room is never ended here; its deadline is kept by its connection.

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
import mmap
import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

FRAMES_MIN: Final = 6
BYTES_MIN: Final = 64 * 1024
READ_BYTES_MIN: Final = 2048
"""Smallest read: a connection that may not receive so much waits for room."""
WAKE_BYTES_MIN: Final = 8192
"""A connection that waits for room to read continues when it may receive so much: more than each request of
the others holds and frees, which would otherwise wake all waiting connections."""
HEADROOM_BYTES: Final = 16 * 1024 * 1024
"""Memory of the system that unfinished frames leave free: for the requests of other connections and for a
worker thread, whose stack alone takes 8 MiB."""
_LIMITS: Final = (resource.RLIMIT_AS, resource.RLIMIT_DATA)


def promises_what_it_has(setting: Path) -> bool:
    """Whether the system may refuse memory to a process without limits; also if it does not say."""
    try:
        return setting.read_text(encoding="ascii").strip() not in {"0", "1"}
    except OSError:
        return True


_IS_STRICT: Final = promises_what_it_has(Path("/proc/sys/vm/overcommit_memory"))


def may_refuse_memory() -> bool:
    """Whether the system may refuse this process a few more MiB.

    Linux does so only at a limit of the process (`ulimit -v`, `ulimit -d`), or where it promises no more
    memory than it has (`vm.overcommit_memory=2`). It costs a microsecond, a fraction of an allocation.
    """
    return _IS_STRICT or any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in _LIMITS)


def can_allocate(count: int) -> bool:
    """Whether the system gives this process `count` more bytes.

    It costs a few microseconds: the memory is not touched.
    """
    try:
        mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True


def bytes_max_for(frame_bytes_max: int) -> int:
    """The least memory of a server that accepts frames up to this size.

    With six frames, a single connection may read more than two, and the rest has room for the cost of a
    request with the largest header.
    """
    return FRAMES_MIN * frame_bytes_max + BYTES_MIN


class ClientMemory:
    """The memory that all connections of a server hold, and the connections that wait for room."""

    def __init__(self, bytes_max: int, *, connections_max: int, room_timeout_s: float) -> None:
        """`room_timeout_s`: how long a connection waits for room before unfinished frames are dropped."""
        self.bytes_max = bytes_max
        self.kept_bytes = bytes_max // 16
        """Kept from reading, for answers."""
        self.shared_bytes = bytes_max - self.kept_bytes - bytes_max // 8
        """For reading, shared by the dynamic threshold."""
        self.share_bytes = bytes_max // 8 // connections_max
        """What each connection may always hold."""
        self.held_bytes = 0
        """Sum of all accounts. Invariant: never more than `bytes_max`."""
        self.largest_held_bytes = 0
        """Largest value of `held_bytes` so far."""
        self.waits = 0
        """How often a connection had to wait for room."""
        self._room_timeout_s = room_timeout_s
        self._accounts: set[MemoryAccount] = set()
        self._waiting: dict[MemoryAccount, trio.Event] = {}
        self._wake_bytes: float = math.inf
        """The least that any waiting connection needs to continue."""
        self._relieved_s = -math.inf
        """Time of the last `_relieve`."""
        self._promises: dict[MemoryAccount, int] = {}
        """Bytes that waiting connections get for the rest of their frames before others read."""
        self._promised_bytes = 0
        """Sum of `_promises`."""

    @property
    def free_bytes(self) -> int:
        """Bytes that no connection holds."""
        return self.bytes_max - self.held_bytes

    def open_account(self, give_up: Callable[[], None]) -> MemoryAccount:
        """The account of a new connection; `give_up` is called to have the connection closed.

        It must be closed with the connection.
        """
        account = MemoryAccount(self, give_up)
        self._accounts.add(account)
        return account

    @property
    def spare_bytes(self) -> int:
        """Bytes left of the shared part; may be negative."""
        return self.shared_bytes - self.held_bytes - self._promised_bytes

    def _close(self, account: MemoryAccount) -> None:
        self._accounts.discard(account)
        self._waiting.pop(account, None)
        self._withdraw(account)

    async def _wait(self, account: MemoryAccount) -> None:
        self.waits += 1
        try:
            while account.needed_bytes() > self.free_bytes:
                event = self._waiting[account] = trio.Event()
                self._wake_bytes = min(self._wake_bytes, account.needed_bytes())
                with trio.move_on_after(self._room_timeout_s):
                    await event.wait()
                if not event.is_set():
                    self._relieve()
        finally:
            self._waiting.pop(account, None)
            self._withdraw(account)
            account.read_since_s = trio.current_time()

    def _freed(self, account: MemoryAccount) -> None:
        """Bytes of `account` came free: wake the connections that may continue."""
        self._keep_promises()
        if account in self._waiting:
            # It holds less, and so needs less.
            self._wake_bytes = min(self._wake_bytes, account.needed_bytes())
        free_bytes = self.free_bytes
        if free_bytes < self._wake_bytes:
            return
        self._wake_bytes = math.inf
        for waiting, event in self._waiting.items():
            needed_bytes = waiting.needed_bytes()
            if needed_bytes <= free_bytes:
                event.set()
                # It will use some of them.
                free_bytes -= WAKE_BYTES_MIN
            else:
                self._wake_bytes = min(self._wake_bytes, needed_bytes)

    async def _make_room(self, account: MemoryAccount) -> bool:
        largest = max(self._accounts, key=lambda other: other.unfinished_bytes, default=account)
        if largest.unfinished_bytes <= account.unfinished_bytes:
            return False
        largest.give_up()
        await largest.closed.wait()
        return True

    def _relieve(self) -> None:
        """Drop unfinished frames until the others fit, if unfinished frames hold most of the memory."""
        now_s = trio.current_time()
        if now_s - self._relieved_s < self._room_timeout_s:
            return
        self._relieved_s = now_s
        unfinished = [account for account in self._accounts if account.unfinished_bytes]
        if (
            2 * sum(account.unfinished_bytes + account.reserved_bytes for account in unfinished)
            < self.held_bytes
        ):
            # Requests and answers hold most; they end by themselves.
            return
        waiting = [account for account in unfinished if account in self._waiting]
        slow = [
            account
            for account in unfinished
            if account not in self._waiting and now_s - account.read_since_s >= self._room_timeout_s
        ]
        slow.sort(key=lambda account: (-account.frame_bytes, account.unfinished_since_s))
        waiting.sort(key=lambda account: (-account.frame_bytes, -account.unfinished_since_s))
        # Bytes that are held now, and the missing bytes of the waiting frames.
        held_bytes = self.held_bytes + sum(account.missing_bytes for account in waiting)
        candidates = deque(slow + waiting)
        while held_bytes > self.shared_bytes and len(candidates) > 1:
            account = candidates.popleft()
            held_bytes -= account.held_bytes
            if account in self._waiting:
                held_bytes -= account.missing_bytes
                self._withdraw(account)
            account.give_up()
        for account in candidates:
            if account in self._waiting:
                self._promise(account)
        self._keep_promises()

    def _promise(self, account: MemoryAccount) -> None:
        self._withdraw(account)
        self._promises[account] = account.missing_bytes
        self._promised_bytes += account.missing_bytes

    def _withdraw(self, account: MemoryAccount) -> None:
        self._promised_bytes -= self._promises.pop(account, 0)

    def _keep_promises(self) -> None:
        """Reserve the promised bytes, in order, as far as there is room."""
        for account, promised_bytes in list(self._promises.items()):
            if promised_bytes > self.shared_bytes - self.held_bytes:
                return
            self._withdraw(account)
            account.reserved_bytes = promised_bytes
            account.change(promised_bytes)
            self._waiting[account].set()


class MemoryAccount:
    """The memory that one connection holds."""

    __slots__ = (
        "_is_only",
        "_memory",
        "_request_bytes",
        "closed",
        "frame_bytes",
        "give_up",
        "held_bytes",
        "read_since_s",
        "reserved_bytes",
        "unfinished_bytes",
        "unfinished_since_s",
    )

    def __init__(self, memory: ClientMemory, give_up: Callable[[], None]) -> None:
        self._memory = memory
        self.give_up = give_up
        self.closed = trio.Event()
        """Set by `close`."""
        self.held_bytes = 0
        """All bytes of the connection. Changed by `change` only."""
        self.unfinished_bytes = 0
        """Part of `held_bytes`: the received bytes of an unfinished frame."""
        self.frame_bytes = 0
        """Size of that frame, as far as it is known."""
        self.unfinished_since_s = 0.0
        """Arrival of the first bytes of that frame, on trio's clock."""
        self.read_since_s = 0.0
        """Since when the connection is read from without waiting for room."""
        self.reserved_bytes = 0
        """Part of `held_bytes`: reserved for the rest of that frame."""
        self._request_bytes: int | None = None
        """Bytes that the request needs for which the connection waits; None if it waits to be read from."""
        self._is_only: Callable[[], bool] | None = None

    @property
    def missing_bytes(self) -> int:
        """Bytes of the unfinished frame that are neither received nor reserved."""
        return max(0, self.frame_bytes - self.unfinished_bytes - self.reserved_bytes)

    def begin_frame(self, now_s: float) -> None:
        """Note the arrival of the first bytes of an unfinished frame."""
        self.unfinished_since_s = self.read_since_s = now_s

    def end_frame(self) -> None:
        """Note that the unfinished frame, if there was one, is complete, and free its reserve."""
        if not self.unfinished_bytes:
            return
        self.unfinished_bytes = 0
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
            # Without waiting connections there are no promises.
            if memory._waiting:
                memory._freed(self)
        elif memory.held_bytes > memory.largest_held_bytes:
            memory.largest_held_bytes = memory.held_bytes

    def readable_bytes(self, wanted_bytes: int) -> int:
        """Bytes that may be received now, at most `wanted_bytes`; 0 if the connection must wait."""
        if self.reserved_bytes:
            return min(wanted_bytes, self.reserved_bytes)
        memory = self._memory
        spare_bytes = (memory.spare_bytes - self.held_bytes) // 2
        if spare_bytes >= wanted_bytes:
            return wanted_bytes
        share_bytes = min(memory.share_bytes - self.held_bytes, memory.free_bytes - memory.kept_bytes)
        allowed_bytes = min(wanted_bytes, max(spare_bytes, share_bytes))
        return allowed_bytes if allowed_bytes >= min(READ_BYTES_MIN, wanted_bytes) else 0

    def fits(self, more_bytes: int) -> bool:
        """Whether there is room for so many more bytes to send."""
        memory = self._memory
        if self.held_bytes + more_bytes <= memory.share_bytes:
            return more_bytes <= memory.free_bytes - memory.kept_bytes
        return self.held_bytes + 2 * more_bytes <= memory.spare_bytes

    def try_to_hold(self, more_bytes: int, *, is_only: bool) -> bool:
        """Hold what a request needs beside its frame while it is handled; False if there is no room.

        `is_only`: no other request of the connection is in flight; then it may use `kept_bytes`.
        """
        # The rules of `_needed_to_handle` and `change`, inlined: a third of the time, for each request.
        memory = self._memory
        held_bytes = memory.held_bytes + more_bytes
        if self.held_bytes + more_bytes > memory.shared_bytes - held_bytes - memory._promised_bytes and not (
            is_only and held_bytes <= memory.bytes_max
        ):
            return False
        self.held_bytes += more_bytes
        memory.held_bytes = held_bytes
        memory.largest_held_bytes = max(memory.largest_held_bytes, held_bytes)
        return True

    async def wait_to_read(self) -> None:
        """Wait until the connection may be read from. Cancellation leaves nothing behind."""
        await self._memory._wait(self)

    async def wait_to_handle(self, more_bytes: int, *, is_only: Callable[[], bool]) -> None:
        """Wait until a request that needs so many more bytes may be handled; see `try_to_hold`."""
        self._request_bytes, self._is_only = more_bytes, is_only
        try:
            await self._memory._wait(self)
        finally:
            self._request_bytes = self._is_only = None

    async def keep_headroom(self) -> None:
        """Close connections with unfinished frames until the system has `HEADROOM_BYTES`.

        Raises MemoryError if this connection has the largest one.
        """
        while may_refuse_memory() and not can_allocate(HEADROOM_BYTES):
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
        self.unfinished_bytes = self.reserved_bytes = 0
        self._memory._close(self)
        self.change(-self.held_bytes)

    def needed_bytes(self) -> int:
        """Bytes that must be free for the waiting connection to continue."""
        if self._request_bytes is not None and self._is_only is not None:
            return self._needed_to_handle(self._request_bytes, is_only=self._is_only())
        memory = self._memory
        if self.reserved_bytes:
            return 0
        if self in memory._promises:
            # It continues when its promise is kept.
            return memory.bytes_max + 1
        if memory.share_bytes - self.held_bytes >= READ_BYTES_MIN:
            return memory.kept_bytes + READ_BYTES_MIN
        return self._needed_beside_shared() + self.held_bytes + 2 * WAKE_BYTES_MIN

    def _needed_to_handle(self, more_bytes: int, *, is_only: bool) -> int:
        if is_only:
            return more_bytes
        return self._needed_beside_shared() + self.held_bytes + 2 * more_bytes

    def _needed_beside_shared(self) -> int:
        """Free bytes that this connection may not use."""
        memory = self._memory
        return memory.free_bytes - memory.spare_bytes
