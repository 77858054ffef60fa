"""The files in which a broker keeps its id: `brokerIdentity` and `brokerIdentity-temp`.

See docs/protocol/ha.md#broker-id, docs/protocol/ha.md#controller-requests.

Theory. A broker without an id asks a controller for one that is free, and applies for it with a check code of
its own. Between the two another broker may take the id; and a crash may come between any two steps. So the
application is on disk before it is sent, and the id is on disk before the application is removed:

| on disk | meaning | next step |
|---|---|---|
| neither | never had an id | 1012, then write `brokerIdentity-temp` |
| `brokerIdentity-temp` | about to apply, or applied; perhaps it was granted | 1013, again, with its code |
| both | granted; the removal of the application was not reached | remove `brokerIdentity-temp` |
| `brokerIdentity` | has an id | 1003 |

The controller grants an id again to an application with the same check code. If another broker took the id,
the application is removed, and all begins again. An id is never given back: `brokerIdentity` stays with the
log whose epochs it names.

Both files are text without a line end, as RocketMQ's brokers write them:

```
brokerIdentity         cluster#brokerName#id
brokerIdentity-temp    cluster#brokerName#id#host:port;milliseconds
```

All functions block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import define, frozen

from trioha.errors import StoreError
from trioha.numbers import Range, parse_int
from trioha.store.atomic_file import replace_file
from trioha.store.syncing import sync_directory

SEPARATOR: Final = "#"
TEMPORARY_SUFFIX: Final = "-temp"
FILE_BYTES_MAX: Final = 64 * 1024
_ID: Final = Range(1, 2**63 - 1)


@frozen(kw_only=True)
class Application:
    """An id that was applied for."""

    broker_id: int
    check_code: str
    """`host:port;milliseconds`: by it the controller knows the applicant again."""


@define
class IdentityFiles:
    """The two files of one broker."""

    path: Path
    """Of `brokerIdentity`; RocketMQ's storePathBrokerIdentity, by default in storePathRootDir."""
    cluster_name: str
    broker_name: str
    broker_id: int | None = None
    """None until there is a `brokerIdentity`."""
    application: Application | None = None
    """None unless there is a `brokerIdentity-temp` and no id."""

    @classmethod
    def open(cls, path: Path, *, cluster_name: str, broker_name: str) -> IdentityFiles:
        """Read what there is. A damaged application is dropped: it only costs the id that it named.

        Raises StoreError for an identity that is damaged or of another broker, and for files that cannot be
        read: with another id the broker would be another one, which its log's epochs deny.
        """
        files = cls(path, cluster_name, broker_name)
        fields = _read(path)
        if fields is not None:
            files.broker_id = files._identity(fields)
        temporary = _read(files.temporary_path)
        if temporary is None:
            return files
        if files.broker_id is None:
            files.application = files._application(temporary)
        if files.application is None:
            _remove(files.temporary_path)
        return files

    @property
    def temporary_path(self) -> Path:
        """Of `brokerIdentity-temp`."""
        return self.path.with_name(self.path.name + TEMPORARY_SUFFIX)

    def apply_for(self, application: Application) -> None:
        """Put an application on disk, before it is sent. Raises StoreError."""
        assert self.broker_id is None, "a broker has one id for ever"
        text = SEPARATOR.join(
            (self.cluster_name, self.broker_name, str(application.broker_id), application.check_code)
        )
        _write(self.temporary_path, text)
        self.application = application

    def drop_application(self) -> None:
        """Another broker took the id: begin again. Raises StoreError."""
        _remove(self.temporary_path)
        self.application = None

    def grant(self) -> int:
        """The application was granted: keep its id. Raises StoreError."""
        assert self.application is not None, "only an application is granted"
        broker_id = self.application.broker_id
        _write(self.path, SEPARATOR.join((self.cluster_name, self.broker_name, str(broker_id))))
        self.broker_id = broker_id
        _remove(self.temporary_path)
        self.application = None
        return broker_id

    def _identity(self, fields: list[str]) -> int:
        if len(fields) != 3:
            raise self._unusable(f"has {len(fields)} of 3 fields, cluster{SEPARATOR}brokerName{SEPARATOR}id")
        cluster_name, broker_name, text = fields
        try:
            broker_id = parse_int(text, _ID)
        except ValueError as error:
            raise self._unusable(f"has no broker id: {error}") from None
        if (cluster_name, broker_name) != (self.cluster_name, self.broker_name):
            raise StoreError(
                f"belongs to {broker_name} of cluster {cluster_name}, but brokerName is {self.broker_name} "
                f"and brokerClusterName is {self.cluster_name}",
                path=self.path,
                hint="give the names that the store was made with, or another store",
            )
        return broker_id

    def _application(self, fields: list[str]) -> Application | None:
        if len(fields) != 4 or fields[:2] != [self.cluster_name, self.broker_name]:
            return None
        try:
            return Application(broker_id=parse_int(fields[2], _ID), check_code=fields[3])
        except ValueError:
            return None

    def _unusable(self, reason: str) -> StoreError:
        return StoreError(
            reason,
            path=self.path,
            hint="write it as it was (mqadmin getSyncStateSet shows the ids of the group)",
        )


def read_identity(path: Path) -> tuple[str, str, int] | None:
    """Cluster, broker name and id in a `brokerIdentity`; None without one. Raises StoreError if it is
    damaged."""
    fields = _read(path)
    if fields is None:
        return None
    try:
        cluster_name, broker_name, text = fields
        return cluster_name, broker_name, parse_int(text, _ID)
    except ValueError as error:
        raise StoreError(f"is not cluster{SEPARATOR}brokerName{SEPARATOR}id: {error}", path=path) from None


def _read(path: Path) -> list[str] | None:
    """The fields of a file; None if it is missing."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
    return data.decode("utf-8", "replace").strip().split(SEPARATOR)


def _write(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", path=path) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise StoreError(f"cannot be removed: {error.strerror}", path=path) from error
