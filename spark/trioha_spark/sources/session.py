"""Spark data source `trioha-session`: the events of recorded sessions.

```
spark.read.format("trioha-session").load("/var/trioha/sessions")
```

The folder is a session, a folder of sessions, or an archive; segments may be packed (`trioha session pack`).
`s3://`, `gs://` and `az://` URLs are those of an archive (`s3://bucket/archive`) or of one of its sessions
(`s3://bucket/archive/recordings/SESSION`), which executors read in place. One row for each event: `session`
(the folder's name), `seq`, `ts_ns` (monotonic), `time` (wall clock), `kind`, `kind_name`, `flags`, `node`,
`conn`, `role` (`master` or `slave`: of the node, on that connection if there is one), `address` (`host:port`
of the connection's peer), `offset`, `aux`, `size`, see docs/spark.md. A `.schema(...)` with some of these
reads only them.

| option | meaning |
|---|---|
| seqFrom, seqTo | only events with `seqFrom <= seq < seqTo` |
| kinds | only these kinds, names or numbers, separated by commas: `PUT,ACK` |
| errors | `true`: a table of the damage instead of the events: session, file, position, records, reason |
| storage.NAME | of a URL: a setting of its storage, as `storage.aws_region`; others are the environment's |
| maxEventsPerTrigger | streaming only: maximum events of a batch of all sessions, before the filter `kinds` |

The sessions may still be recorded. A DataFrame is not a snapshot: ranges are planned once for each `load`,
the last one of each session is open, another one is for new sessions of the folder, and every action reads
the current records. Load again after much growth, so that the new part is split into ranges, too. Reading
fails if records have been deleted since `load`.

Filters are not pushed down: see `trioha_spark.sources.commit_log`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from trioha.numbers import NATURAL64, Range, parse_int
from trioha_spark.sources.options import (
    SourceError,
    check_schema,
    ddl,
    flag_option,
    names_option,
    number_option,
    path_option,
    refuse_unknown,
    storage_settings,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from trioha.recording.reader import Session
    from trioha_analysis.ranges import SeqRange
    from trioha_sessions.facts import Peer
    from trioha_sessions.segments import Damage

OPTIONS = frozenset({"seqFrom", "seqTo", "kinds", "errors", "maxEventsPerTrigger"})
RANGE_RECORDS = 4 * 131_072
"""Records of a task: 25 MB, and whole row groups of packed segments."""


class SessionSource(DataSource):
    """The events of sessions, or with option `errors` their damage."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "trioha-session"

    def schema(self) -> str:
        """Without a user's schema: all columns."""
        return ddl(_columns(flag_option(self.options, "errors")))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the columns of `schema`."""
        return SessionDataSourceReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Follows growing sessions."""
        return SessionDataSourceStreamReader(dict(self.options), schema)


class SessionPartition(InputPartition):
    """A range of a session's seqs with the segments that hold it, so that a task opens no others.

    `damage`: of the session's segments when it was planned, which the first partition reports. `is_last`:
    whether it also has the records, and the damage, that were written since.
    """

    def __init__(
        self, path: Path, wanted: SeqRange, *, damage: tuple[Damage, ...], is_first: bool, is_last: bool
    ) -> None:
        super().__init__((path, wanted, damage, is_first, is_last))


class NewSessionsPartition(InputPartition):
    """Sessions that did not exist when it was planned: all but the `known` paths."""

    def __init__(self, known: frozenset[Path]) -> None:
        super().__init__(known)


class _Sessions:
    """Checked options and reading of ranges, for batch and streaming."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        options = {name.lower(): value for name, value in options.items()}
        refuse_unknown(options, OPTIONS)
        self.path = path_option(options)
        self.settings = storage_settings(options)
        self.errors = flag_option(options, "errors")
        self.arrow_schema = check_schema(schema, _columns(self.errors), SessionSource.name())
        self.seq_from = number_option(options, "seqfrom") or 0
        self.seq_to = number_option(options, "seqto")
        self.kinds = _kinds(names_option(options, "kinds"))
        self.trigger_events = number_option(options, "maxeventspertrigger", least=1)

    def find(self) -> list[Path]:
        """The sessions of the path."""
        from trioha.archive.session_paths import find_recordings  # noqa: PLC0415

        return find_recordings([self.path], settings=self.settings)

    @property
    def is_one(self) -> bool:
        """Whether the path is that of one session: it gets no new ones."""
        from trioha.recording.layout import SESSION_FILE  # noqa: PLC0415

        if isinstance(self.path, Path):
            return (self.path / SESSION_FILE).is_file()
        return "/recordings/" in self.path.rstrip("/")

    def cut(self, path: Path, seq_from: int, seq_to: int | None) -> list[InputPartition]:
        """Partitions of a session's seqs, each but the last within one segment."""
        from trioha.recording.reader import open_session  # noqa: PLC0415
        from trioha_analysis.ranges import cut_seqs  # noqa: PLC0415
        from trioha_sessions.segments import read_segments  # noqa: PLC0415

        segments = read_segments(open_session(path), seq_from=seq_from)
        ranges = cut_seqs(segments, seq_from, seq_to, range_records=RANGE_RECORDS)
        return [
            SessionPartition(
                path,
                wanted,
                damage=segments.damage if self.errors and index in {0, len(ranges) - 1} else (),
                is_first=index == 0,
                is_last=index == len(ranges) - 1,
            )
            for index, wanted in enumerate(ranges)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        from trioha.recording.reader import open_session  # noqa: PLC0415
        from trioha_analysis.ranges import count_seqs, read_seqs, same_segments  # noqa: PLC0415
        from trioha_sessions.segments import Damage, Segments, read_segments  # noqa: PLC0415

        path, wanted, damage, is_first, is_last = partition.value
        session = open_session(path)
        peers = _peers(session) if _OF_FACTS & set(self.arrow_schema.names) else {}
        if is_last:
            segments = read_segments(session, seq_from=wanted.seq_from)
        else:
            segments = same_segments(session, Segments(wanted.segments, ()))
        if count_seqs(segments, wanted.seq_from, wanted.seq_to) < wanted.records:
            raise SourceError(
                f"{path}: records from {wanted.seq_from} on are gone since they were listed; load again"
            )
        if self.errors:
            new = [each for each in segments.damage if each not in damage]
            yield from (self._damage(session.path.name, each) for each in [*damage * is_first, *new])
        for found in read_seqs(session, segments, seq_from=wanted.seq_from, seq_to=wanted.seq_to):
            if isinstance(found, Damage):
                if self.errors:
                    yield self._damage(session.path.name, found)
                continue
            records = found
            if self.kinds:
                records = records[np.isin(records["kind"], self.kinds)]
            if len(records) and not self.errors:
                columns = [_column(session, peers, records, name) for name in self.arrow_schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _damage(self, name: str, damage: Any) -> pa.RecordBatch:
        import pyarrow as pa  # noqa: PLC0415

        row = {
            "session": name,
            "file": damage.path,
            "position": damage.position,
            "records": damage.records,
            "reason": damage.reason,
        }
        return pa.RecordBatch.from_pylist([row], self.arrow_schema)


class SessionDataSourceReader(DataSourceReader):
    """Batch reader."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.sessions = _Sessions(options, schema)

    def partitions(self) -> list[InputPartition]:
        """One for each `RANGE_RECORDS` of a segment, the last one open unless there is a seqTo; and one for
        new sessions, if this is a folder of sessions."""
        paths = self._paths()
        partitions = [partition for path in paths for partition in self._cut(path)]
        if not self.sessions.is_one:
            partitions.append(NewSessionsPartition(frozenset(paths)))
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        # None: Spark's placeholder if there are no partitions.
        if partition.value is None:
            return
        if not isinstance(partition, NewSessionsPartition):
            yield from self.sessions.read(partition)
            return
        for path in self._paths():
            if path not in partition.value:
                for part in self._cut(path):
                    yield from self.sessions.read(part)

    def _paths(self) -> list[Path]:
        return self.sessions.find()

    def _cut(self, path: Path) -> list[InputPartition]:
        return self.sessions.cut(path, self.sessions.seq_from, self.sessions.seq_to)


class SessionDataSourceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader; its offset is, by session, the seq after the last event of a batch."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.sessions = _Sessions(options, schema)
        if self.sessions.seq_to is not None:
            raise SourceError("option seqTo: a stream has no end")
        self.target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        """Empty: sessions without an offset start at seqFrom."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """maxEventsPerTrigger."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows  # noqa: PLC0415

        events_max = self.sessions.trigger_events
        return ReadAllAvailable() if events_max is None else ReadMaxRows(events_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """The query ends at the current ends of the sessions."""
        self.target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The ends of the sessions, or fair shares of `maxEventsPerTrigger`."""
        from pyspark.sql.streaming.datasource import ReadMaxRows  # noqa: PLC0415

        latest = {name: parse_int(seq, NATURAL64) for name, seq in start.items()}
        given = sum(latest.values())
        begins, there = {}, {}
        for name, end in (self._ends() if self.target is None else self.target).items():
            begins[name] = latest.get(name, self.sessions.seq_from)
            there[name] = max(0, end - begins[name])
        if isinstance(limit, ReadMaxRows):
            there = fair_shares(there, limit.max_rows, rotation=given)
        latest.update({name: begins[name] + events for name, events in there.items() if events})
        return latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Ranges of a batch; new sessions start at seqFrom."""
        paths = self._paths()
        gone = sorted(name for name, seq in end.items() if name not in paths and seq != start.get(name))
        if gone:
            raise SourceError(f"{self.sessions.path}: session {gone[0]} is gone before it was read")
        return [
            partition
            for name, seq in end.items()
            if name in paths
            for partition in self.sessions.cut(
                paths[name],
                parse_int(start.get(name, self.sessions.seq_from), NATURAL64),
                parse_int(seq, NATURAL64),
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        return self.sessions.read(partition)

    def _paths(self) -> dict[str, Path]:
        return {path.name: path for path in self.sessions.find()}

    def _ends(self) -> dict[str, int]:
        from trioha_analysis.ranges import session_end  # noqa: PLC0415

        return {name: session_end(path) for name, path in self._paths().items()}


def fair_shares(wanted: Mapping[str, int], most: int, *, rotation: int) -> dict[str, int]:
    """Max-min fair shares of `most`: each gets what it wants, or as much as any other (within one).

    The remainder goes to different ones by `rotation`, so that each gets some in the long run.
    """
    shares: dict[str, int] = {}
    left = most
    open_ = sorted((count, name) for name, count in wanted.items() if count)
    # Those that want less than an even share get all they want.
    while open_ and open_[0][0] <= left // len(open_):
        count, name = open_.pop(0)
        shares[name] = count
        left -= count
    if open_:
        even, more = divmod(left, len(open_))
        names = sorted(name for _, name in open_)
        first = rotation % len(names)
        for place, name in enumerate(names[first:] + names[:first]):
            shares[name] = even + (place < more)
    return shares


def _kinds(names: list[str]) -> list[int]:
    from trioha.recording.events import Kind  # noqa: PLC0415

    kinds: list[int] = []
    for name in names:
        if name.upper() in Kind.__members__:
            kinds.append(Kind[name.upper()])
            continue
        try:
            kinds.append(parse_int(name, Range(0, 255)))
        except ValueError:
            raise SourceError(
                f"option kinds: {name!r} is none of {', '.join(Kind.__members__)}, nor 0 to 255"
            ) from None
    return kinds


def _columns(errors: bool) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    if errors:
        return pa.schema(
            {
                "session": pa.string(),
                "file": pa.string(),
                "position": pa.int64(),
                "records": pa.int64(),
                "reason": pa.string(),
            }
        )
    return pa.schema(
        {
            "session": pa.string(),
            "seq": pa.int64(),
            "ts_ns": pa.int64(),
            "time": pa.timestamp("us", tz="UTC"),
            "kind": pa.int32(),
            "kind_name": pa.string(),
            "flags": pa.int32(),
            "node": pa.int32(),
            "conn": pa.int32(),
            "role": pa.string(),
            "address": pa.string(),
            "offset": pa.int64(),
            "aux": pa.int64(),
            "size": pa.int32(),
        }
    )


_OF_FACTS = frozenset({"role", "address"})
"""Columns that need the session's facts."""


def _peers(session: Session) -> dict[int, Peer]:
    """The peers of the session's connections, as far as its facts are readable."""
    from trioha_sessions.facts import peers_of, read_facts  # noqa: PLC0415

    facts, _ = read_facts(session)
    return peers_of(facts)


def _column(session: Session, peers: Mapping[int, Peer], records: Any, name: str) -> pa.Array:
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    type_ = _columns(False).field(name).type
    if name == "session":
        return pa.repeat(session.path.name, len(records))
    if name == "time":
        return pa.array(session.wall_of(records["ts_ns"]) // 1000, type_)
    if name == "kind_name":
        names = pa.array([session.kinds.get(kind) for kind in range(256)], type_)
        return names.take(pa.array(np.ascontiguousarray(records["kind"])))
    if name in _OF_FACTS:
        conns = pa.array(np.ascontiguousarray(records["conn"])).dictionary_encode()
        of_conn = _role if name == "role" else _address
        texts = [of_conn(session, peers.get(conn)) for conn in conns.dictionary.to_pylist()]
        return pa.array(texts, type_).take(conns.indices)
    return pa.array(np.ascontiguousarray(records[name], type_.to_pandas_dtype()), type_)


def _role(session: Session, peer: Peer | None) -> str:
    """The node's role on a connection: a slave is the master of the slaves that it serves."""
    is_served = peer is not None and peer.role == "master"
    return "slave" if session.is_slave and not is_served else "master"


def _address(_: Session, peer: Peer | None) -> str | None:
    return None if peer is None else peer.address
