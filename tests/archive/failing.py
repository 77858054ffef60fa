"""An object storage that fails or dies at its n-th request, before or after the request was carried out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from trioha.archive.errors import ArchiveError
from trioha.archive.objects import ObjectFolder, StoredObject

How = Literal["dies before", "dies after", "fails before", "fails after"]
HOWS: tuple[How, ...] = ("dies before", "dies after", "fails before", "fails after")


class DiedError(BaseException):
    """The process was killed: nothing of it runs any more."""


class FailingFolder(ObjectFolder):
    """Counts requests; the one of number `at` fails once, or is the process's last one."""

    def __init__(self, folder: ObjectFolder, *, at: int = -1, how: How = "fails before") -> None:
        super().__init__(folder._store, folder.url)
        self.at = at
        self.how = how
        self.requests = 0
        self.put_keys: list[str] = []

    def get(self, key: str) -> bytes:
        with self._fault(key):
            return super().get(key)

    def stream(self, key: str) -> Iterator[bytes]:
        with self._fault(key):
            yield from super().stream(key)

    def create(self, key: str, data: bytes) -> bool:
        with self._fault(key):
            return super().create(key, data)

    def put(self, key: str, data: bytes | Iterable[bytes]) -> None:
        with self._fault(key):
            super().put(key, data)
            self.put_keys.append(key)

    def list(self, folder: str, *, after: str | None = None) -> Iterator[StoredObject]:
        with self._fault(folder):
            yield from super().list(folder, after=after)

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            with self._fault(keys[0]):
                super().delete(keys)

    def _fault(self, key: str) -> _Fault:
        self.requests += 1
        return _Fault(self, key, is_now=self.requests - 1 == self.at)


class _Fault:
    def __init__(self, folder: FailingFolder, key: str, *, is_now: bool) -> None:
        self._folder = folder
        self._key = key
        self._is_now = is_now

    def __enter__(self) -> None:
        if self._is_now and self._folder.how.endswith("before"):
            self._end()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._is_now and self._folder.how.endswith("after") and error is None:
            self._end()

    def _end(self) -> None:
        if self._folder.how.startswith("dies"):
            raise DiedError
        raise ArchiveError("cut off", url=self._folder.url, key=self._key, is_transient=True)
