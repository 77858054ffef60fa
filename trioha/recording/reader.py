"""Finds recorded sessions, and reads the metadata of one from its `session.json`.

`trioha_sessions`, which needs NumPy, reads the rest: segments, records, facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from attrs import field, frozen

from trioha.errors import StoreError
from trioha.numbers import I64, Range, parse_int
from trioha.recording.layout import FORMAT, SESSION_FILE, SOURCE_NODE, VERSION, SessionIdentity
from trioha.recording.paths import absolute_path

RECORD_BYTES_MAX: Final = 4096
"""Longest record that is accepted."""
CLOCK_NS: Final = Range(0, 2**62)
"""Clock readings that are accepted: to the year 2116."""
_CODE: Final = Range(0, 255)
NEEDED_FIELDS: Final = ("ts_ns", "seq", "kind", "flags", "node", "conn", "offset", "aux", "size", "check")


@frozen
class Segment:
    """A file of records at one moment."""

    path: Path
    base_seq: int
    """Seq of its first record."""
    base_ts_ns: int
    """Monotonic clock at its first record."""
    header_bytes: int
    """0 of a packed segment."""
    records: int
    """Whole records in it."""


@frozen
class Session:
    """Metadata of a session."""

    path: Path
    identity: SessionIdentity
    program_version: str
    monotonic_ns: int
    wall_ns: int
    """Wall clock, ns since 1970, at the moment when the monotonic clock was `monotonic_ns`."""
    record_bytes: int
    fields: tuple[tuple[str, str, int], ...]
    """Name, NumPy type and byte offset of each field of a record."""
    kinds: Mapping[int, str] = field(factory=dict)
    """Names of the kinds by code, as written."""

    def wall_of(self, ts_ns: int) -> int:
        """Wall time, ns since 1970, of a record's `ts_ns`."""
        return self.wall_ns + ts_ns - self.monotonic_ns

    @property
    def is_slave(self) -> bool:
        """Whether a slave recorded it."""
        return self.identity.role == "SLAVE"


@runtime_checkable
class ListsSegments(Protocol):
    """The path of a session that is no folder here: it has a list of its segments, which do not change."""

    def list_segments(self) -> Sequence[Segment]:
        """In order of their seqs."""


def find_sessions(paths: Iterable[str | Path]) -> list[Path]:
    """The session folders of `paths`: each path is a session, or a folder of sessions (trioha.recordDir).

    They are absolute (`trioha.recording.paths`). Raises StoreError for other paths.
    """
    found: list[Path] = []
    for path in map(absolute_path, paths):
        if (path / SESSION_FILE).is_file():
            found.append(path)
            continue
        if not path.is_dir():
            raise StoreError("no such folder", path=path, hint="name a session, or a folder of sessions")
        below = sorted(child for child in path.iterdir() if (child / SESSION_FILE).is_file())
        if not below:
            raise StoreError(
                "not a session, nor a folder of sessions",
                path=path,
                hint=f"a session is a folder with {SESSION_FILE}, made by a node with trioha.recordDir",
            )
        found += below
    return list(dict.fromkeys(found))


def open_session(path: Path) -> Session:
    """Read `session.json` of the session folder `path`. Raises StoreError if it is not a valid session."""
    file = path / SESSION_FILE
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"not a session: there is no {SESSION_FILE}", path=path) from None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror or error}", path=file) from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not JSON: {error}", path=file) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StoreError(f"not a session: its format is not {FORMAT}", path=file)
    if document.get("version") != VERSION:
        raise StoreError(
            f"session of version {document.get('version')}, this program reads version {VERSION}",
            path=file,
            hint="use the trioha that recorded it, or a newer one",
        )
    if document.get("source", SOURCE_NODE) != SOURCE_NODE:
        raise StoreError(
            "samples, which a monitor of an earlier trioha recorded: this one does not read them",
            path=file,
            hint="use the trioha that recorded them",
        )
    try:
        return _session(path, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"incomplete or wrong: {type(error).__name__} {error}", path=file) from None


def _session(path: Path, document: dict[str, Any]) -> Session:
    record_bytes = parse_int(document["record_bytes"], Range(8, RECORD_BYTES_MAX))
    if record_bytes % 8:
        raise ValueError(f"record_bytes {record_bytes}")
    if document["byte_order"] != "little":
        raise ValueError(f"byte_order {document['byte_order']}")
    fields = tuple(
        (str(f["name"]), str(f["dtype"]), parse_int(f["offset"], Range(0, record_bytes - 1)))
        for f in document["fields"]
    )
    names = [name for name, _, _ in fields]
    missing = [name for name in NEEDED_FIELDS if name not in names]
    if missing or len(set(names)) != len(names):
        raise ValueError(f"fields {names}")
    if next(offset for name, _, offset in fields if name == "check") % 4:
        raise ValueError("check word is not on a word's border")
    node = document["node"]
    return Session(
        path=path,
        identity=SessionIdentity(
            cluster_name=str(node["clusterName"]),
            broker_name=str(node["brokerName"]),
            broker_id=parse_int(node["brokerId"], I64),
            role=str(node["role"]),
            settings=dict(document["settings"]),
        ),
        program_version=str(document["program"]["version"]),
        monotonic_ns=parse_int(document["clock"]["monotonic_ns"], CLOCK_NS),
        wall_ns=parse_int(document["clock"]["wall_ns"], CLOCK_NS),
        record_bytes=record_bytes,
        fields=fields,
        kinds={parse_int(code, _CODE): str(name) for code, name in document["kinds"].items()},
    )
