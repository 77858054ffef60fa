"""The object storage below an archive's URL. Everything here blocks: it is called in worker threads.

obstore (the object_store crate of Rust) speaks to S3, Google Cloud Storage, Azure and folders; it is imported
when the first URL is opened. Credentials, regions and endpoints come from the environment, as its
documentation names them (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, ...); so
do options of the connection (`AWS_ALLOW_HTTP=true` for an endpoint without TLS, `AWS_PROXY_URL`, ...).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from attrs import frozen

from trioha.archive.errors import ArchiveError, MissingObjectError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

SCHEMES: Final = ("s3", "gs", "az", "file")
REQUEST_TIMEOUT_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 10.0
RETRIES_MAX: Final = 4
RETRY_FOR_S: Final = 60.0
_REASON_MAX: Final = 300
_VARIABLES: Final = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""What environment variables of a scheme begin with."""
_CLIENT_OPTIONS: Final = (
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

    def __init__(self, store: ObjectStore, url: str) -> None:
        self.url = url
        self._store = store

    @classmethod
    def open(cls, url: str, *, create: bool = False) -> ObjectFolder:
        """Open a URL; nothing is sent yet. `create`: make the folder of a `file://` URL if there is none.

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
            raise ArchiveError(
                "archives need obstore", url=url, hint="pip install 'trioha[archive]'"
            ) from error
        try:
            if parts.scheme == "file":
                return cls(LocalStore(_folder(url, parts.path, create=create)), url)
            store = from_url(
                url,
                client_options=_client_options(parts.scheme),
                retry_config={
                    "max_retries": RETRIES_MAX,
                    "retry_timeout": timedelta(seconds=RETRY_FOR_S),
                },
            )
        except (BaseError, OSError, ValueError) as error:
            raise ArchiveError(_reason(error), url=url) from error
        return cls(store, url)

    def get(self, key: str) -> bytes:
        """The whole object. Raises MissingObjectError if there is none."""
        with self._request(key):
            return bytes(_obstore().get(self._store, key).bytes())

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

    def create(self, key: str, data: bytes) -> bool:
        """Store an object under a key that has none yet; False if it has one, which then stays as it is."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError  # noqa: PLC0415 (see above)

        with self._request(key):
            try:
                _obstore().put(self._store, key, data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def put(self, key: str, data: bytes | Iterable[bytes]) -> None:
        """Store an object, in parts if it comes in pieces; the one that is there is replaced as a whole.

        What `data` raises when it is iterated is raised as it is, and nothing is stored.
        """
        if isinstance(data, bytes):
            with self._request(key):
                _obstore().put(self._store, key, data)
            return
        pieces = _Pieces(iter(data))
        try:
            with self._request(key):
                _obstore().put(self._store, key, pieces, use_multipart=True, max_concurrency=2)
        except Exception as error:
            if pieces.error is not None and pieces.error is not error:
                raise pieces.error from None
            raise

    def list(self, folder: str, *, after: str | None = None) -> Iterator[StoredObject]:
        """Objects below `folder`, in no particular order; with `after` only those with keys beyond it."""
        with self._request(folder):
            for batch in _obstore().list(self._store, folder, offset=after, chunk_size=1000):
                for one in batch:
                    yield StoredObject(
                        one["path"], one["size"], round(one["last_modified"].timestamp() * 1000)
                    )

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are none less."""
        if not keys:
            return
        with self._request(keys[0]):
            try:
                _obstore().delete(self._store, list(keys))
            except FileNotFoundError:
                if len(keys) > 1:
                    for key in keys:
                        self.delete([key])

    def _request(self, key: str) -> _Request:
        return _Request(self.url, key)


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
        from obstore.exceptions import (  # noqa: PLC0415 (see above)
            BaseError,
            GenericError,
            JoinError,
            NotSupportedError,
            PermissionDeniedError,
            UnauthenticatedError,
        )

        match error:
            case None:
                return
            case FileNotFoundError():
                raise MissingObjectError("there is no such object", url=self.url, key=self.key) from error
            case PermissionDeniedError() | UnauthenticatedError() | PermissionError():
                raise ArchiveError(
                    f"access is denied: {_reason(error)}",
                    url=self.url,
                    key=self.key,
                    hint="check the credentials and their permissions",
                ) from error
            case NotSupportedError():
                raise ArchiveError(_reason(error), url=self.url, key=self.key) from error
            case GenericError() | JoinError() | TimeoutError():
                raise ArchiveError(_reason(error), url=self.url, key=self.key, is_transient=True) from error
            case BaseError() | OSError():
                raise ArchiveError(_reason(error), url=self.url, key=self.key) from error


def _obstore() -> Any:
    import obstore  # noqa: PLC0415 (a node without an archive needs none)

    return obstore


def _client_options(scheme: str) -> ClientConfig:
    """Time limits, and options of the connection by environment variables, as `AWS_ALLOW_HTTP`."""
    variables = {name: f"{_VARIABLES[scheme]}_{name.upper()}" for name in _CLIENT_OPTIONS}
    options = {
        "timeout": timedelta(seconds=REQUEST_TIMEOUT_S),
        "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_S),
        **{name: os.environ[variable] for name, variable in variables.items() if variable in os.environ},
    }
    return cast("ClientConfig", options)


def _folder(url: str, path: str, *, create: bool) -> Path:
    folder = Path(path)
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise ArchiveError("there is no such folder", url=url)
    return folder


def _reason(error: BaseException) -> str:
    """The first line of an error's text: obstore adds a dump of the error's source."""
    text = str(error).strip().split("\n", 1)[0]
    return (text or type(error).__name__)[:_REASON_MAX]
