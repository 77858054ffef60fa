"""Spark data source `rocketmq-commitlog`: the messages of a RocketMQ (or trioha) store.

```
spark.read.format("rocketmq-commitlog").load("/var/store")
spark.read.format("rocketmq-commitlog").load("s3://bucket/archive")
```

The folder is a storePathRootDir, its commitlog folder, or an archive (`trioha archive`); a URL (`s3://`,
`gs://`, `az://`) is an archive, which executors read in place. One row for each message, with the columns of
`trioha_analysis.commitlog.columns.TYPES`; `.schema("queue_offset long, topic string")` reads only those,
which is faster. Bodies and properties are as stored: `trioha_spark.sources.functions` decodes them.

| option | meaning |
|---|---|
| topic | only these topics, separated by commas |
| startOffset, endOffset | only messages that start at physical offsets `[startOffset, endOffset)` |
| fromTime, toTime | only messages stored in `[fromTime, toTime)`: ms since 1970, or with a date |
| generation | of an archive: the id of the history to read, or its first digits; the newest one by default |
| storage.NAME | of a URL: a setting of its storage, as `storage.aws_region`; others are the environment's |
| verifyBodies | `true`: bodies whose CRC is wrong are damage instead of messages |
| errors | `true`: a table of the damage instead of the messages: file, physical_offset, size_bytes, reason |
| rangeBytes | bytes of a file that one task reads, 64 MiB by default |
| maxBytesPerTrigger | streaming only: approximate bytes of the log in a batch |

Of an archive, only objects are read that may have such offsets, times or topics, by the statistics in its
head: a query with `topic` and `fromTime` reads a part of it. A DataFrame of an archive is what its head has
when it is loaded.

The log may be in use. A DataFrame is not a snapshot: ranges are planned once for each `load`, the last one is
open, and every action reads the current bytes. So a later count is higher; load again after much growth, so
that the new part is split into ranges, too. If the broker has deleted a file since `load`, reading fails.

Filters are not pushed down: Spark 4.3 plans a source once for each `load`, so a DataFrame used twice with
different filters would get the rows of one filter in both places. Use options to read less.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from trioha.numbers import NATURAL64, parse_int
from trioha_spark.sources.options import (
    STORAGE_PREFIX,
    SourceError,
    check_schema,
    ddl,
    flag_option,
    names_option,
    number_option,
    path_option,
    refuse_unknown,
    storage_settings,
    time_option,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from trioha.archive.access import Location
    from trioha_analysis.commitlog.archived import ArchivedOffset, ArchivedRange
    from trioha_analysis.commitlog.files import OffsetRange
    from trioha_analysis.commitlog.reading import LogDamage
    from trioha_analysis.commitlog.walk import Columns

OPTIONS = frozenset(
    {
        "topic",
        "startOffset",
        "endOffset",
        "fromTime",
        "toTime",
        "generation",
        "verifyBodies",
        "errors",
        "rangeBytes",
        "maxBytesPerTrigger",
    }
)
RANGE_BYTES_MIN = 4096


class CommitLogSource(DataSource):
    """The messages of a store, or with option `errors` its damage."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "rocketmq-commitlog"

    def schema(self) -> str:
        """Without a user's schema: all columns."""
        return ddl(_columns(flag_option(self.options, "errors")))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the columns of `schema`."""
        return CommitLogReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Follows a growing log or archive."""
        log = _Log(dict(self.options), schema)
        if log.end_offset is not None:
            raise SourceError("option endOffset: a stream has no end")
        return CommitLogStreamReader(log) if log.archive is None else ArchiveStreamReader(log, log.archive)


class LogPartition(InputPartition):
    """A range of the log's offsets, in a store or in an archive."""

    def __init__(self, wanted: OffsetRange | ArchivedRange) -> None:
        super().__init__(wanted)


class _Log:
    """Checked options and reading of ranges, for batch and streaming."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        from trioha_analysis.commitlog.files import RANGE_BYTES  # noqa: PLC0415
        from trioha_analysis.commitlog.reading import ReadOptions  # noqa: PLC0415

        options = {name.lower(): value for name, value in options.items()}
        refuse_unknown(options, OPTIONS)
        self.store, self.archive = _store_or_archive(path_option(options), storage_settings(options))
        self.generation = options.get("generation")
        if self.generation is not None and self.archive is None:
            raise SourceError("option generation: a store has one history; archives have generations")
        self.errors = flag_option(options, "errors")
        self.arrow_schema = check_schema(schema, _columns(self.errors), CommitLogSource.name())
        self.start_offset = number_option(options, "startoffset")
        self.end_offset = number_option(options, "endoffset")
        self.range_bytes = number_option(options, "rangebytes", least=RANGE_BYTES_MIN) or RANGE_BYTES
        self.trigger_bytes = number_option(options, "maxbytespertrigger", least=1)
        self.read_options = ReadOptions(
            topics=frozenset(names_option(options, "topic")),
            from_ms=time_option(options, "fromtime"),
            to_ms=time_option(options, "totime"),
            verify_bodies=flag_option(options, "verifybodies"),
        )

    def cut(self, start: int | None, end: int | None) -> list[InputPartition]:
        """Partitions of the offsets `[start, end)`."""
        from trioha_analysis.commitlog.files import cut_ranges, list_files  # noqa: PLC0415

        if self.archive is not None:
            return self.cut_archive(self.archive, self.generation, start, end)
        files = list_files(self.store)
        if start is None:
            start = files[0].start_offset if files else 0
        ranges = cut_ranges(files, start=start, end=end, range_bytes=self.range_bytes)
        return [LogPartition(each) for each in ranges]

    def cut_archive(
        self, archive: Location, generation: str | None, start: int | None, end: int | None
    ) -> list[InputPartition]:
        """Partitions of the offsets `[start, end)` of an archive."""
        from trioha_analysis.commitlog.archived import plan_archive  # noqa: PLC0415

        ranges = plan_archive(
            archive,
            self.read_options,
            generation=generation,
            start=start,
            end=end,
            range_bytes=self.range_bytes,
        )
        return [LogPartition(each) for each in ranges]

    def _found(self, wanted: OffsetRange | ArchivedRange) -> Iterator[Columns | LogDamage]:
        from trioha_analysis.commitlog.archived import ArchivedRange, read_archived  # noqa: PLC0415
        from trioha_analysis.commitlog.reading import read_range  # noqa: PLC0415

        if isinstance(wanted, ArchivedRange):
            return read_archived(wanted, self.read_options)
        return read_range(self.store, wanted, self.read_options)

    def read(self, wanted: OffsetRange | ArchivedRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        import pyarrow as pa  # noqa: PLC0415

        from trioha_analysis.commitlog.columns import decode  # noqa: PLC0415
        from trioha_analysis.commitlog.reading import LogDamage  # noqa: PLC0415

        names = self.arrow_schema.names
        for found in self._found(wanted):
            if isinstance(found, LogDamage):
                if self.errors:
                    row = {
                        "file": found.path,
                        "physical_offset": found.gap.start_offset,
                        "size_bytes": found.gap.size_bytes,
                        "reason": found.gap.reason,
                    }
                    yield pa.RecordBatch.from_pylist([row], self.arrow_schema)
            elif not self.errors:
                columns = decode(found, names)
                if names:
                    yield pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)
                else:
                    yield pa.RecordBatch.from_struct_array(pa.array([{}] * len(found), pa.struct([])))


class CommitLogReader(DataSourceReader):
    """Batch reader."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.log = _Log(options, schema)

    def partitions(self) -> list[InputPartition]:
        """One for each `rangeBytes` of a file; the last one is open unless there is an endOffset."""
        return self.log.cut(self.log.start_offset, self.log.end_offset)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        # None: Spark's placeholder if there are no partitions.
        return iter(()) if partition.value is None else self.log.read(partition.value)


class CommitLogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader; its offset is the physical offset after the last message of a batch."""

    def __init__(self, log: _Log) -> None:
        self.log = log
        self.target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        """startOffset, or the start of the log."""
        from trioha_analysis.commitlog.files import list_files  # noqa: PLC0415

        files = list_files(self.log.store)
        first = files[0].start_offset if files else 0
        return {"offset": first if self.log.start_offset is None else self.log.start_offset}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """maxBytesPerTrigger."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes  # noqa: PLC0415

        bytes_max = self.log.trigger_bytes
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """After the last whole message, or the first message `maxBytesPerTrigger` after `start`."""
        from pyspark.sql.streaming.datasource import ReadMaxBytes  # noqa: PLC0415

        from trioha_analysis.commitlog.following import end_of_log  # noqa: PLC0415

        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        begin = parse_int(start["offset"], NATURAL64)
        if self.target is not None and begin >= self.target:
            return {"offset": begin}
        end = end_of_log(self.log.store, begin, bytes_max=bytes_max)
        return {"offset": end if self.target is None else min(end, self.target)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """The query ends at the current end of the log."""
        from trioha_analysis.commitlog.files import list_files  # noqa: PLC0415
        from trioha_analysis.commitlog.following import end_of_log  # noqa: PLC0415

        files = list_files(self.log.store)
        self.target = end_of_log(self.log.store, files[0].start_offset if files else 0)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Ranges of a batch."""
        return self.log.cut(parse_int(start["offset"], NATURAL64), parse_int(end["offset"], NATURAL64))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        return self.log.read(partition.value)


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of an archive; its offset is a generation and a physical offset in it."""

    def __init__(self, log: _Log, archive: Location) -> None:
        self.log = log
        self.archive = archive
        self.target: ArchivedOffset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """startOffset, or the start of the generation."""
        from trioha_analysis.commitlog.archived import stream_start  # noqa: PLC0415

        found = stream_start(self.archive, generation=self.log.generation, start=self.log.start_offset)
        return _as_json(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """maxBytesPerTrigger."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes  # noqa: PLC0415

        bytes_max = self.log.trigger_bytes
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the archive, or of the last object within `maxBytesPerTrigger` after `start`."""
        from pyspark.sql.streaming.datasource import ReadMaxBytes  # noqa: PLC0415

        from trioha_analysis.commitlog.archived import stream_end  # noqa: PLC0415

        begin = _from_json(start)
        if self.target is not None and begin.offset >= self.target.offset:
            return start
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        end = stream_end(self.archive, begin, bytes_max=bytes_max)
        return _as_json(end if self.target is None or end.offset <= self.target.offset else self.target)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """The query ends at the current end of the archive."""
        from trioha_analysis.commitlog.archived import ArchivedOffset, open_archive  # noqa: PLC0415

        generation = open_archive(self.archive).generation(self.log.generation)
        self.target = ArchivedOffset(generation.id, generation.end_offset)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Ranges of a batch."""
        begin, last = _from_json(start), _from_json(end)
        return self.log.cut_archive(self.archive, begin.generation, begin.offset, last.offset)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        return self.log.read(partition.value)


def _as_json(offset: ArchivedOffset) -> dict[str, Any]:
    return {"generation": offset.generation, "offset": offset.offset}


def _from_json(value: dict[str, Any]) -> ArchivedOffset:
    from trioha_analysis.commitlog.archived import ArchivedOffset  # noqa: PLC0415

    return ArchivedOffset(str(value["generation"]), parse_int(value["offset"], NATURAL64))


def _store_or_archive(path: str | Path, settings: dict[str, str]) -> tuple[Path, Location | None]:
    """A store's folder, or where an archive is."""
    from trioha.archive.access import Location  # noqa: PLC0415
    from trioha.archive.layout import HEADS  # noqa: PLC0415

    if not isinstance(path, Path):
        return Path(path), Location.of(path, settings)
    if settings:
        raise SourceError(f"option {STORAGE_PREFIX}{next(iter(settings))}: {path} is a folder")
    is_archive = (path / HEADS).is_dir() and not (path / "commitlog").is_dir()
    return path, Location.of(f"file://{path}") if is_archive else None


def _columns(errors: bool) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    from trioha_analysis.commitlog.columns import TYPES  # noqa: PLC0415

    if errors:
        return pa.schema(
            {
                "file": pa.string(),
                "physical_offset": pa.int64(),
                "size_bytes": pa.int64(),
                "reason": pa.string(),
            }
        )
    return pa.schema(dict(TYPES))
