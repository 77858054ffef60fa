"""Reads the metadata of a recorded session: `session.json`, its segments, its facts.

Needs no NumPy; only packed segments need PyArrow.

The session may still be written, or end within a record. Damage never stops a reader: what cannot be read is
left out and reported as `Damage`. A torn last record or line is not damage: that is how a killed recorder
ends. `trioha_sessions.records` reads the records themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from attrs import field, frozen

from trioha.errors import StoreError
from trioha.numbers import I32, I64, NATURAL32, NATURAL64, Range, parse_int
from trioha.recording.layout import (
    ACCEPTED_RECORDS_MAX,
    EVENTS_FOLDER,
    FACTS_FILE,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PACKED_SUFFIX,
    SESSION_FILE,
    SOURCE_NODE,
    VERSION,
    SessionIdentity,
    segment_name,
)
from trioha.recording.packed import PackedError, describe, is_packed
from trioha.recording.paths import absolute_path

RECORD_BYTES_MAX: Final = 4096
"""Longest record that is accepted."""
CLOCK_NS: Final = Range(0, 2**62)
"""Clock readings that are accepted: to the year 2116."""
_CODE: Final = Range(0, 255)
NEEDED_FIELDS: Final = ("ts_ns", "seq", "kind", "flags", "node", "conn", "offset", "aux", "size", "check")


@frozen
class Damage:
    """Something in a session that cannot be read."""

    path: str
    """The file."""
    position: int
    """Its first byte in the file."""
    reason: str
    """The kind of damage, in a few words."""
    records: int
    """How many records are lost; 0 if unknown."""


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
class Segments:
    """The segments of a session in their order, and their damage."""

    segments: tuple[Segment, ...]
    damage: tuple[Damage, ...]

    @property
    def records(self) -> int:
        """Whole records in all of them."""
        return sum(segment.records for segment in self.segments)


@frozen
class Fact:
    """A line of facts.jsonl: information that does not fit a record."""

    seq: int
    """Seq of the record after it."""
    type_: str
    """`connection`, `probes`, `config`, `note`, `sample`, or an unknown type."""
    fields: Mapping[str, Any]


@frozen
class Peer:
    """The peer of a connection, as a fact names it. Missing fields are None."""

    address: str | None
    """`host:port`."""
    role: str | None
    """Role of the recording node on this connection: `master` or `slave`."""
    certificate: str | None
    """The name in its certificate."""


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
            source=str(document.get("source", SOURCE_NODE)),
            sampled_ms=(
                None if document.get("sampled_ms") is None else parse_int(document["sampled_ms"], NATURAL32)
            ),
        ),
        program_version=str(document["program"]["version"]),
        monotonic_ns=parse_int(document["clock"]["monotonic_ns"], CLOCK_NS),
        wall_ns=parse_int(document["clock"]["wall_ns"], CLOCK_NS),
        record_bytes=record_bytes,
        fields=fields,
        kinds={parse_int(code, _CODE): str(name) for code, name in document["kinds"].items()},
    )


def read_segments(session: Session, *, seq_from: int = 0) -> Segments:
    """The segments that exist now, packed or not; the last one may still grow.

    With `seq_from` those before the one that holds this seq, by their names, are left out unread. A segment
    has precedence over its packed file. Raises StoreError if one is packed and PyArrow is not installed.
    """
    found: dict[int, Segment] = {}
    damage: list[Damage] = []
    if isinstance(session.path, ListsSegments):
        listed = session.path.list_segments()
        first = max((at for at, one in enumerate(listed) if one.base_seq <= seq_from), default=0)
        return _in_order(listed[first:], damage)
    folder = session.path / EVENTS_FOLDER
    paths = (*sorted(folder.glob("*.seg")), *sorted(folder.glob(f"*{PACKED_SUFFIX}")))
    for path in _from(paths, seq_from) if seq_from > 0 else paths:
        segment = describe_segment(session, path)
        if isinstance(segment, Damage):
            damage.append(segment)
        else:
            found.setdefault(segment.base_seq, segment)
    return _in_order([found[base_seq] for base_seq in sorted(found)], damage)


def _in_order(segments: Sequence[Segment], damage: list[Damage]) -> Segments:
    """The segments, and the damage with what is missing between them."""
    for before, segment in pairwise(segments):
        expected_seq = before.base_seq + before.records
        missing = segment.base_seq - expected_seq
        if missing:
            reason = f"records {expected_seq} to {segment.base_seq - 1} are missing before this segment"
            if missing < 0:
                reason = f"begins at record {segment.base_seq}, which the segment before it has too"
            damage.append(Damage(str(segment.path), 0, reason, max(0, missing)))
    return Segments(tuple(segments), tuple(damage))


def _from(paths: Sequence[Path], seq_from: int) -> Iterator[Path]:
    """The paths of segments that may hold `seq_from` or later seqs, and those without a seq as a name."""
    bases = {path: int(path.stem) for path in paths if path.stem.isdecimal()}
    # Where segments overlap, the earlier one has the records: so the one before, too.
    begins = sorted(base for base in set(bases.values()) if base <= seq_from)[-2:]
    return (path for path in paths if bases.get(path, seq_from) >= min(begins, default=0))


def describe_segment(session: Session, path: Path) -> Segment | Damage:
    """A segment by its file, packed or not."""
    return _packed(path) if is_packed(path) else _segment(path, session.record_bytes)


def find_segment(session: Session, base_seq: int) -> Segment | Damage | None:
    """The segment of a name in the session's folder, packed or not; None if there is none any more."""
    folder = session.path / EVENTS_FOLDER
    for path in (folder / segment_name(base_seq), folder / f"{base_seq:020d}{PACKED_SUFFIX}"):
        if path.exists():
            return describe_segment(session, path)
    return None


def _packed(path: Path) -> Segment | Damage:
    try:
        base_ts_ns, records = describe(path)
        base_seq = parse_int(path.stem, NATURAL64)
        if not _may_hold(base_seq, records):
            raise ValueError(f"has {records} records from {base_seq} on, more than there can be")
        return Segment(path, base_seq, parse_int(base_ts_ns, CLOCK_NS), 0, records)
    except (PackedError, ValueError) as error:
        return Damage(str(path), 0, str(error), 0)


def _segment(path: Path, record_bytes: int) -> Segment | Damage:
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        return Damage(str(path), 0, f"cannot be read: {error.strerror or error}", 0)
    if len(header) < HEADER_BYTES:
        # The recorder was killed between creating the segment and writing its header.
        return Damage(str(path), 0, f"a header of {len(header)} bytes", 0)
    magic, version, its_record_bytes, header_bytes, base_seq, base_ts_ns = HEADER.unpack(header)
    whole = max(0, size_bytes - HEADER_BYTES) // record_bytes
    if magic != MAGIC or version != VERSION:
        return Damage(str(path), 0, f"not a segment of version {VERSION}", whole)
    if its_record_bytes != record_bytes or header_bytes < HEADER_BYTES:
        return Damage(str(path), 10, f"records of {its_record_bytes} bytes, header of {header_bytes}", whole)
    if path.stem != f"{base_seq:020d}" or base_seq < 0:
        return Damage(str(path), 16, f"begins at record {base_seq}, which its name does not say", whole)
    if not CLOCK_NS.low <= base_ts_ns <= CLOCK_NS.high:
        return Damage(str(path), 24, f"begins at {base_ts_ns} ns, which no clock shows", whole)
    records = max(0, size_bytes - header_bytes) // record_bytes
    if not _may_hold(base_seq, records):
        return Damage(str(path), 0, f"has {records} records from {base_seq} on, more than there can be", 0)
    return Segment(path, base_seq, base_ts_ns, header_bytes, records)


def _may_hold(base_seq: int, records: int) -> bool:
    """Whether a segment can have so many records: loops over them depend on it."""
    return records <= ACCEPTED_RECORDS_MAX and base_seq <= I64.high - records


def read_facts(session: Session) -> tuple[Sequence[Fact], Sequence[Damage]]:
    """The facts of a session in their order; a torn last line is left out."""
    path = session.path / FACTS_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], [Damage(str(path), 0, "missing", 0)]
    except OSError as error:
        return [], [Damage(str(path), 0, f"cannot be read: {error.strerror or error}", 0)]
    facts: list[Fact] = []
    damage: list[Damage] = []
    position = 0
    for line in data.split(b"\n")[:-1]:
        try:
            fields = json.loads(line)
            facts.append(Fact(parse_int(fields.pop("seq"), NATURAL64), str(fields.pop("type")), fields))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damage.append(Damage(str(path), position, "not a fact", 0))
        position += len(line) + 1
    return facts, damage


def peers_of(facts: Iterable[Fact]) -> dict[int, Peer]:
    """The peer of each connection that a fact names, by its number."""
    return {conn: peer for conn, _, peer in named_peers(facts)}


def named_peers(facts: Iterable[Fact]) -> Iterator[tuple[int, int, Peer]]:
    """Connection, seq of its first record and peer of each fact that names one."""
    for fact in facts:
        conn = fact.fields.get("conn")
        if fact.type_ == "connection" and type(conn) is int and I32.low <= conn <= I32.high:
            yield conn, fact.seq, Peer(*(_text(fact.fields.get(name)) for name in _PEER_FIELDS))


_PEER_FIELDS: Final = ("address", "role", "certificate")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
