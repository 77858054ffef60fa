"""The object storage below an archive's URL. Everything here blocks: it is called in worker threads.

obstore (the object_store crate of Rust) speaks to S3, Google Cloud Storage, Azure and folders; it is imported
when the first URL is opened. Credentials, regions and endpoints come from the environment, as its
documentation names them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, ...); so
do options of the connection (`AWS_ALLOW_HTTP=true` for an endpoint without TLS, `AWS_PROXY_URL`, ...).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from attrs import frozen

from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.failures import VARIABLES, archive_error, was_repeated
from trioha.extras import how_to_install

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

SCHEMES: Final = ("s3", "gs", "az", "file")
REQUEST_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 10.0
RETRIES_MAX: Final = 4
RETRY_FOR_S: Final = 60.0
OBJECTS_MAX: Final = 10_000_000
"""Of one listing: an object every ten seconds for three years. A storage may list for ever."""
BACKOFF_S: Final = 0.1
"""Before the first repetition of a request; twice as much before each further one."""
WHOLE_BYTES_MAX: Final = 256 << 20
"""Of an object that is read into memory as a whole: documents, and files of recorded sessions."""
_UNFINISHED: Final = re.compile(r".+#[0-9]+")
"""A file into which obstore writes an object of a folder, until it is whole and gets its name."""
T = TypeVar("T")
CLIENT_OPTIONS: Final = (
    "timeout",
    "connect_timeout",
    "allow_http",
    "allow_invalid_certificates",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
)
"""Options of the connection from the environment: obstore drops these as soon as it is given another one."""


@frozen
class StoredObject:
    """An object as a listing has it."""

    key: str
    bytes: int
    modified_ms: int


class ObjectFolder:
    """All objects below one URL. Keys are relative to it. Instances may be used by several threads."""

    def __init__(self, store: ObjectStore, url: str, *, root: Path | None = None) -> None:
        """`root`: the folder of a `file://` URL."""
        self.url = url
        self._store = store
        self._root = root

    @classmethod
    def open(cls, url: str, *, create: bool = False, config: Mapping[str, str] | None = None) -> ObjectFolder:
        """Open a URL; nothing is sent yet. `create`: make the folder of a `file://` URL if there is none.
        `config`: settings that count before those of the environment, as `trioha.archive.access` has them.

        Raises ArchiveError for a URL that cannot be one, without obstore, and for a missing folder.
        """
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ArchiveError(
                "not a URL of an object storage", url=url, hint="write s3://, gs://, az:// or file:///"
            )
        if parts.scheme == "file":
            if parts.netloc or not parts.path.startswith("/"):
                raise ArchiveError("not an absolute folder", url=url, hint="write file:///folder")
        elif not parts.netloc:
            raise ArchiveError("names no bucket", url=url, hint=f"write {parts.scheme}://bucket/folder")
        try:
            from obstore.exceptions import BaseError  # noqa: PLC0415 (a node without an archive needs none)
            from obstore.store import LocalStore, from_url  # noqa: PLC0415
        except ImportError as error:
            raise ArchiveError("archives need obstore", url=url, hint=how_to_install("archive")) from error
        try:
            if parts.scheme == "file":
                root = _folder(url, parts.path, create=create)
                return cls(LocalStore(root), url, root=root)
            settings = dict(config or {})
            client_options = _client_options(parts.scheme, settings)
            store = from_url(
                url,
                config=cast("Any", settings),
                client_options=client_options,
                retry_config={
                    "max_retries": RETRIES_MAX,
                    "backoff": {"init_backoff": timedelta(seconds=BACKOFF_S)},
                    "retry_timeout": timedelta(seconds=RETRY_FOR_S),
                },
            )
        except (BaseError, OSError, ValueError) as error:
            raise archive_error(error, url=url, key=None) or ArchiveError(str(error), url=url) from error
        return cls(store, url)

    def get(self, key: str) -> bytes:
        """The whole object. Raises MissingObjectError if there is none, ArchiveError for more than
        `WHOLE_BYTES_MAX`."""
        with self._request(key):
            found = _obstore().get(self._store, key)
            if found.meta["size"] > WHOLE_BYTES_MAX:
                raise ArchiveError(
                    f"has {found.meta['size']} bytes, at most {WHOLE_BYTES_MAX} are read as a whole",
                    url=self.url,
                    key=key,
                )
            return bytes(found.bytes())

    def stream(self, key: str) -> Iterator[bytes]:
        """The object in pieces, some MiB each. Raises MissingObjectError if there is none."""
        with self._request(key):
            for piece in _obstore().get(self._store, key).stream(min_chunk_size=1 << 20):
                yield bytes(piece)

    def get_range(self, key: str, *, start: int, end: int) -> bytes:
        """Bytes `[start, end)` of the object, fewer if it ends before `end`.

        Raises MissingObjectError if there is none, ArchiveError for a range after its end.
        """
        if start == end:
            return b""
        with self._request(key):
            return bytes(_obstore().get_range(self._store, key, start=start, end=end))

    def size(self, key: str) -> int:
        """Bytes of the object. Raises MissingObjectError if there is none."""
        with self._request(key):
            return int(_obstore().head(self._store, key)["size"])

    def create(self, key: str, data: bytes) -> bool:
        """Store an object under a key that has none yet; False if it has another one, which stays as it is.

        An object with the same bytes is taken for this one: its answer may have been lost.
        """
        return self._repeat(lambda: self._create_once(key, data))

    def _create_once(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError  # noqa: PLC0415 (see above)

        with self._request(key):
            try:
                _obstore().put(self._store, key, data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                pass
            else:
                self.sync(key)
                return True
        try:
            is_ours = self.get(key) == data
        except MissingObjectError as error:
            # Deleted since, or a server that answers so to the second one of two requests at a time.
            raise ArchiveError(
                "cannot be created, and is not there", url=self.url, key=key, is_transient=True
            ) from error
        if is_ours:
            self.sync(key)
        return is_ours

    def put(self, key: str, data: bytes | Iterable[bytes]) -> None:
        """Store an object, in parts if it comes in pieces; the one that is there is replaced as a whole.

        What `data` raises when it is iterated is raised as it is, and nothing is stored.
        """
        if isinstance(data, bytes):
            with self._request(key):
                _obstore().put(self._store, key, data)
            self.sync(key)
            return
        pieces = _Pieces(iter(data))
        try:
            with self._request(key):
                _obstore().put(self._store, key, pieces, use_multipart=True, max_concurrency=2)
        except Exception as error:
            if pieces.error is not None and pieces.error is not error:
                raise pieces.error from None
            raise
        self.sync(key)

    def list(self, folder: str, *, after: str | None = None) -> Iterator[StoredObject]:
        """Objects below `folder`, in no particular order; with `after` only those with keys beyond it.

        Raises ArchiveError, also for more than `OBJECTS_MAX` objects.
        """
        count = 0
        pages = self._pages(folder, after)
        attempts = _Attempts()
        while True:
            try:
                page = next(pages, None)
            except ArchiveError as error:
                if self._root is not None:
                    raise
                attempts.wait_after(error)
                pages = self._pages(folder, after)
                continue
            if page is None:
                return
            attempts = _Attempts()
            count += len(page)
            if count > OBJECTS_MAX:
                raise ArchiveError(
                    f"lists more than {OBJECTS_MAX} objects",
                    url=self.url,
                    key=folder,
                    hint="look what else is written there, or shorten the archive with --keep",
                )
            yield from page
            if page:
                # All storages but folders list keys in their order.
                after = page[-1].key

    def _pages(self, folder: str, after: str | None) -> Iterator[Sequence[StoredObject]]:
        with self._request(folder):
            for page in _obstore().list(self._store, folder, offset=after, chunk_size=1000):
                yield [
                    StoredObject(one["path"], one["size"], round(one["last_modified"].timestamp() * 1000))
                    for one in page
                ]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are none less."""
        if keys:
            self._repeat(lambda: self._delete_once(keys))

    def _delete_once(self, keys: Sequence[str]) -> None:
        try:
            with self._request(keys[0]):
                _obstore().delete(self._store, list(keys))
        except MissingObjectError:
            if len(keys) > 1:
                for key in keys:
                    self._delete_once([key])

    def _repeat(self, request: Callable[[], T]) -> T:
        """Repeat what obstore does not: requests whose connection ended, perhaps after they succeeded."""
        attempts = _Attempts()
        while True:
            try:
                return request()
            except ArchiveError as error:
                attempts.wait_after(error)

    def delete_unfinished(self, folder: str, *, before_ms: int) -> int:
        """Delete what writers that were killed have left below `folder` before that time; how many files.

        Those are files of a `file://` URL that are no objects, and that no listing has. Object storages keep
        incomplete uploads to themselves.
        """
        if self._root is None:
            return 0
        deleted = 0
        with self._request(folder):
            for path in (self._root / folder).rglob("*#*"):
                if not _UNFINISHED.fullmatch(path.name):
                    continue
                try:
                    if path.stat().st_mtime_ns < before_ms * 1_000_000:
                        path.unlink()
                        deleted += 1
                except FileNotFoundError:
                    # It has become an object.
                    continue
        return deleted

    def sync(self, key: str) -> None:
        """Have an object in a folder survive a loss of power, which obstore leaves to the system.

        `put` and `create` do so with theirs; one that is found may be from a writer that was killed before.
        """
        if self._root is None:
            return
        path = self._root / key
        with self._request(key):
            for one in (path, *path.parents[: len(Path(key).parts)]):
                descriptor = os.open(one, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _request(self, key: str) -> _Request:
        return _Request(self.url, key)


class _Attempts:
    """How often one request was repeated."""

    def __init__(self) -> None:
        self._number = 0
        self._until_s = time.monotonic() + RETRY_FOR_S

    def wait_after(self, error: ArchiveError) -> None:
        """Wait before the next one. Raises `error` if there is to be none."""
        is_over = self._number >= RETRIES_MAX or time.monotonic() >= self._until_s
        if is_over or not error.is_transient or was_repeated(error):
            raise error
        time.sleep(BACKOFF_S * 2**self._number)
        self._number += 1


class _Pieces:
    """An object in pieces, and what reading them raised, which obstore may raise as an error of its own."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


@frozen
class _Request:
    """Turns obstore's errors into ArchiveError, around one request."""

    url: str
    key: str

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception):
            failure = archive_error(error, url=self.url, key=self.key)
            if failure is not None:
                raise failure from error


def _obstore() -> Any:
    import obstore  # noqa: PLC0415 (a node without an archive needs none)

    return obstore


def _client_options(scheme: str, settings: dict[str, str]) -> ClientConfig:
    """Time limits, and options of the connection: those of `settings`, which are removed there, else by
    environment variables, as `AWS_ALLOW_HTTP`."""
    variables = {name: f"{VARIABLES[scheme]}_{name.upper()}" for name in CLIENT_OPTIONS}
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        **{name: os.environ[variable] for name, variable in variables.items() if variable in os.environ},
        **{name: settings.pop(name) for name in CLIENT_OPTIONS if name in settings},
    }
    return cast("ClientConfig", options)


def _folder(url: str, path: str, *, create: bool) -> Path:
    folder = Path(path)
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise ArchiveError("there is no such folder", url=url)
    return folder
