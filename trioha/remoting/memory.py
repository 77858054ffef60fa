"""The memory that a server's peers may use, all connections together.

Theory of operation. A connection holds bytes of three kinds: received ones that are no whole request yet,
requests that are being handled, and answers that wait to be written. Each connection has an account of them;
the sum of all accounts never exceeds `bytes_max`. Nobody waits in a queue for a share of it. A connection is
read from only while it holds less than what is free (a dynamic threshold, as switches share their buffers):

    held by the connection + next read <= free - next read

So reading stops first where most is held, and N greedy connections settle at `bytes_max / (N + 1)` each. Two
parts are kept from that. One eighth is for connections that hold little: each may always hold its share, a
`connections_max`-th of it, so that small requests are read at once whatever others do. One sixteenth is for
requests that were read: what can be answered always is. An answer that is larger than what its request held
is subject to the same rule as a read; where it does not fit, the server says SYSTEM_BUSY instead.

What is held comes free again without anybody's doing: requests end at their own deadlines, and answers are
written or the connection is closed at the send timeout. Not so a frame of which the peer has sent a part.
Many of them can fill the memory so that none is ever whole: each connection waits for room that only another
could give. Therefore, when a connection has waited for room for `room_timeout_s` and most of the memory is
held by unfinished frames, connections with one are closed, and counted, until all other frames that wait fit:
first those whose peers were read from for `room_timeout_s` and did not complete their frame, the largest and
oldest first; then those that wait for room themselves, the largest and newest first. The last one stays. Each
frame that is left gets a reserve for the rest of it as soon as that is free, before anybody else may read:
connections that come in place of the closed ones cannot take it. A frame that makes progress while the memory
has room is never ended here; its own deadline is the connection's affair.

The system may have less memory than `bytes_max`. A connection that fails to allocate its next read therefore
asks for `make_room`: the connection with the largest unfinished frame is closed, if that frame is larger than
its own, and the read is tried again.

One connection alone may hold nearly half of the memory, which must therefore be at least `bytes_max_for` the
largest frame: then a single connection can always complete its frame and have it handled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

FRAMES_MIN: Final = 6
BYTES_MIN: Final = 64 * 1024
READ_BYTES_MIN: Final = 2048
"""Less than this is not worth a read: a connection that may not receive as much waits for room."""
WAKE_BYTES_MIN: Final = 8192
"""A connection that waits to be read from goes on when it may receive as much: more than others take and give
back with each of their requests, which would wake all that wait each time."""


def bytes_max_for(frame_bytes_max: int) -> int:
    """The least memory for a server that accepts frames up to this size.

    Of six frames one connection alone may read more than two, and the rest has room for what a request with
    the largest header costs beside its frame.
    """
    return FRAMES_MIN * frame_bytes_max + BYTES_MIN


class ClientMemory:
    """What all connections of a server hold together, and who has to wait for room."""

    def __init__(self, bytes_max: int, *, connections_max: int, room_timeout_s: float) -> None:
        """`room_timeout_s`: how long a connection waits for room before unfinished frames are given up."""
        self.bytes_max = bytes_max
        self.kept_bytes = bytes_max // 16
        """Not for reading."""
        self.shared_bytes = bytes_max - self.kept_bytes - bytes_max // 8
        """For reading, whatever a connection holds already."""
        self.share_bytes = bytes_max // 8 // connections_max
        """What each connection may always hold."""
        self.held_bytes = 0
        """Sum of all accounts. Invariant: never more than `bytes_max`."""
        self.largest_held_bytes = 0
        """The most it ever was."""
        self.waits = 0
        """How often a connection had to wait for room."""
        self._patience_s = room_timeout_s
        self._accounts: set[MemoryAccount] = set()
        self._waiting: dict[MemoryAccount, trio.Event] = {}
        self._wake_bytes: float = math.inf
        """As soon as so much is free, one that waits may go on: the least that any of them needs."""
        self._relieved_s = -math.inf
        """When it was last decided who is closed for want of room."""
        self._promises: dict[MemoryAccount, int] = {}
        """What those that wait get for the rest of their frames before anybody else reads."""
        self._promised_bytes = 0
        """Their sum."""

    @property
    def free_bytes(self) -> int:
        """What nobody holds."""
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
        """What is left for reading, whatever a connection holds already; may be negative."""
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
                with trio.move_on_after(self._patience_s):
                    await event.wait()
                if not event.is_set():
                    self._relieve()
        finally:
            self._waiting.pop(account, None)
            self._withdraw(account)
            account.read_since_s = trio.current_time()

    def _freed(self, account: MemoryAccount) -> None:
        """Bytes of `account` came free: wake those whose time has come."""
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
                # It is going to use some.
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
        """Give up unfinished frames until the others fit, if it is they that fill the memory."""
        now_s = trio.current_time()
        if now_s - self._relieved_s < self._patience_s:
            return
        self._relieved_s = now_s
        unfinished = [account for account in self._accounts if account.unfinished_bytes]
        if (
            2 * sum(account.unfinished_bytes + account.reserved_bytes for account in unfinished)
            < self.held_bytes
        ):
            # Most is held by requests and answers, which end by themselves.
            return
        waiting = [account for account in unfinished if account in self._waiting]
        slow = [
            account
            for account in unfinished
            if account not in self._waiting and now_s - account.read_since_s >= self._patience_s
        ]
        slow.sort(key=lambda account: (-account.frame_bytes, account.unfinished_since_s))
        waiting.sort(key=lambda account: (-account.frame_bytes, -account.unfinished_since_s))
        # What is held, and what those that wait will hold in addition when their frames are whole.
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
        """Reserve the rest of those frames for which it was promised, as far as there is room, in order."""
        for account, promised_bytes in list(self._promises.items()):
            if promised_bytes > self.shared_bytes - self.held_bytes:
                return
            self._withdraw(account)
            account.reserved_bytes = promised_bytes
            account.change(promised_bytes)
            self._waiting[account].set()


class MemoryAccount:
    """What one connection holds."""

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
        """All that the connection holds. Moved by `change` only."""
        self.unfinished_bytes = 0
        """Of them: the part of a frame whose rest the peer has not sent."""
        self.frame_bytes = 0
        """How many bytes that frame is going to have, as far as is known."""
        self.unfinished_since_s = 0.0
        """When that frame began, on trio's clock."""
        self.read_since_s = 0.0
        """Since when the connection is read from for it without waiting for room."""
        self.reserved_bytes = 0
        """Of what is held: not received yet, but nobody else may take it."""
        self._request_bytes: int | None = None
        """What the request needs that the connection waits with; None if it waits to be read from."""
        self._is_only: Callable[[], bool] | None = None

    @property
    def missing_bytes(self) -> int:
        """How much of the unfinished frame has not come, and is not reserved for it."""
        return max(0, self.frame_bytes - self.unfinished_bytes - self.reserved_bytes)

    def begin_frame(self, now_s: float) -> None:
        """The first bytes of a frame have come, of which there will be more."""
        self.unfinished_since_s = self.read_since_s = now_s

    def end_frame(self) -> None:
        """The frame that was unfinished is whole."""
        self.unfinished_bytes = 0
        reserved_bytes, self.reserved_bytes = self.reserved_bytes, 0
        if reserved_bytes:
            self.change(-reserved_bytes)

    def receive(self, received_bytes: int) -> None:
        """Hold what was received, of the reserve as far as there is one."""
        reserved_bytes = min(received_bytes, self.reserved_bytes)
        self.reserved_bytes -= reserved_bytes
        self.change(received_bytes - reserved_bytes)

    def change(self, by_bytes: int) -> None:
        """Hold so many bytes more, or less."""
        memory = self._memory
        self.held_bytes += by_bytes
        memory.held_bytes += by_bytes
        if by_bytes < 0:
            # Promises are made to connections that wait.
            if memory._waiting:
                memory._freed(self)
        elif memory.held_bytes > memory.largest_held_bytes:
            memory.largest_held_bytes = memory.held_bytes

    def readable_bytes(self, wanted_bytes: int) -> int:
        """How many bytes may be received now, at most `wanted_bytes`; 0 if the connection has to wait."""
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
        """Whether there is room for so many bytes more that are to be sent."""
        memory = self._memory
        if self.held_bytes + more_bytes <= memory.share_bytes:
            return more_bytes <= memory.free_bytes - memory.kept_bytes
        return self.held_bytes + 2 * more_bytes <= memory.spare_bytes

    def try_to_hold(self, more_bytes: int, *, is_only: bool) -> bool:
        """Hold what a request needs beside its frame while it is handled, if there is room; whether there is.

        `is_only`: no other request of the connection is in flight; then what is kept is for it.
        """
        # As `_needed_to_handle`, and as `change`, in a third of the time: this is done for each request.
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
        """Return when the connection may be read from. Cancelled, it leaves nothing behind."""
        await self._memory._wait(self)

    async def wait_to_handle(self, more_bytes: int, *, is_only: Callable[[], bool]) -> None:
        """Return when a request that needs so many bytes more may be handled; see `try_to_hold`."""
        self._request_bytes, self._is_only = more_bytes, is_only
        try:
            await self._memory._wait(self)
        finally:
            self._request_bytes = self._is_only = None

    async def make_room(self) -> bool:
        """Have the connection with the largest unfinished frame closed, and return when it is.

        False if no other connection has a larger unfinished frame than this one: then nothing was done.
        """
        return await self._memory._make_room(self)

    def close(self) -> None:
        """Give all of it back: the connection is over."""
        self.closed.set()
        self.unfinished_bytes = self.reserved_bytes = 0
        self._memory._close(self)
        self.change(-self.held_bytes)

    def needed_bytes(self) -> int:
        """How much must be free for the connection, which waits, to go on."""
        if self._request_bytes is not None and self._is_only is not None:
            return self._needed_to_handle(self._request_bytes, is_only=self._is_only())
        memory = self._memory
        if self.reserved_bytes:
            return 0
        if self in memory._promises:
            # It goes on when the promise is kept.
            return memory.bytes_max + 1
        if memory.share_bytes - self.held_bytes >= READ_BYTES_MIN:
            return memory.kept_bytes + READ_BYTES_MIN
        return self._needed_beside_shared() + self.held_bytes + 2 * WAKE_BYTES_MIN

    def _needed_to_handle(self, more_bytes: int, *, is_only: bool) -> int:
        if is_only:
            return more_bytes
        return self._needed_beside_shared() + self.held_bytes + 2 * more_bytes

    def _needed_beside_shared(self) -> int:
        """What must be free before anything is free for this connection."""
        memory = self._memory
        return memory.free_bytes - memory.spare_bytes
