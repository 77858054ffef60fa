"""Objects of an archive, fetched ahead in threads while the ones before are used.

Objects are fetched in ranges: a request is short, can be repeated by itself, and no connection waits for the
disk. At most `PIECES_AHEAD` ranges of `PIECE_BYTES` are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from trioha.archive.layout import LogObject
from trioha.archive.objects import ObjectFolder

PIECE_BYTES: Final = 1 << 20
PIECES_AHEAD: Final = 6
THREADS: Final = 4


class Fetcher:
    """Fetches log objects ahead. Use it as a context manager: leaving it ends its threads."""

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fetch")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def fetch(self, objects: Iterable[LogObject]) -> Iterator[tuple[LogObject, Iterator[bytes]]]:
        """Each object with the pieces of its stored bytes; those left when the next object comes are dropped.

        Raises ArchiveError where a piece is taken that could not be fetched.
        """
        requests = (
            (one, start) for one in objects for start in range(0, max(one.object_bytes, 1), PIECE_BYTES)
        )
        waiting: deque[tuple[LogObject, Future[bytes]]] = deque()
        last: LogObject | None = None
        try:
            while self._request_more(requests, waiting):
                one, future = waiting[0]
                if one is last:
                    waiting.popleft()
                    future.cancel()
                    continue
                last = one
                yield one, self._pieces(one, requests, waiting)
        finally:
            for _, future in waiting:
                future.cancel()

    def _pieces(
        self,
        one: LogObject,
        requests: Iterator[tuple[LogObject, int]],
        waiting: deque[tuple[LogObject, Future[bytes]]],
    ) -> Iterator[bytes]:
        for _ in range(0, max(one.object_bytes, 1), PIECE_BYTES):
            _, future = waiting.popleft()
            piece = future.result()
            del future
            self._request_more(requests, waiting)
            yield piece

    def _request_more(
        self, requests: Iterator[tuple[LogObject, int]], waiting: deque[tuple[LogObject, Future[bytes]]]
    ) -> bool:
        """Request pieces until enough are under way; whether any are."""
        while len(waiting) < PIECES_AHEAD:
            found = next(requests, None)
            if found is None:
                break
            one, start = found
            end = min(start + PIECE_BYTES, max(one.object_bytes, 1))
            waiting.append((one, self._threads.submit(self._folder.get_range, one.key, start=start, end=end)))
        return bool(waiting)
