"""Spark data source `rocketmq-commitlog`: the messages of a RocketMQ (or trioha) store.

```
spark.read.format("rocketmq-commitlog").load("/var/store")
```

The folder is a storePathRootDir or its commitlog folder. One row for each message, with the columns of
`trioha_analysis.commitlog.columns.TYPES`; `.schema("queue_offset long, topic string")` reads only those,
which is faster. Bodies and properties are as stored: `trioha_spark.sources.functions` decodes them.

| option | meaning |
|---|---|
| topic | only these topics, separated by commas |
| startOffset, endOffset | only messages that start at physical offsets `[startOffset, endOffset)` |
| verifyBodies | `true`: bodies whose CRC is wrong are damage instead of messages |
| errors | `true`: a table of the damage instead of the messages: file, physical_offset, size_bytes, reason |
| rangeBytes | bytes of a file that one task reads, 64 MiB by default |
| maxBytesPerTrigger | streaming only: approximate bytes of the log in a batch |

The log may be in use. A DataFrame is not a snapshot: ranges are planned once for each `load`, the last one is
open, and every action reads the current bytes. So a later count is higher; load again after much growth, so
that the new part is split into ranges, too. If the broker has deleted a file since `load`, reading fails.

Filters are not pushed down: Spark 4.3 plans a source once for each `load`, so a DataFrame used twice with
different filters would get the rows of one filter in both places. Use options to read less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from trioha.numbers import NATURAL64, parse_int
from trioha_spark.sources.options import (
    SourceError,
    check_schema,
    ddl,
    flag_option,
    names_option,
    number_option,
    path_option,
    refuse_unknown,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from trioha_analysis.commitlog.files import OffsetRange

OPTIONS = frozenset(
    {"topic", "startOffset", "endOffset", "verifyBodies", "errors", "rangeBytes", "maxBytesPerTrigger"}
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
        """Follows a growing log."""
        return CommitLogStreamReader(dict(self.options), schema)


class LogPartition(InputPartition):
    """A range of the log's offsets."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)


class _Log:
    """Checked options and reading of ranges, for batch and streaming."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        from trioha_analysis.commitlog.files import RANGE_BYTES  # noqa: PLC0415
        from trioha_analysis.commitlog.reading import ReadOptions  # noqa: PLC0415

        options = {name.lower(): value for name, value in options.items()}
        refuse_unknown(options, OPTIONS)
        self.store = path_option(options)
        self.errors = flag_option(options, "errors")
        self.arrow_schema = check_schema(schema, _columns(self.errors), CommitLogSource.name())
        self.start_offset = number_option(options, "startoffset")
        self.end_offset = number_option(options, "endoffset")
        self.range_bytes = number_option(options, "rangebytes", least=RANGE_BYTES_MIN) or RANGE_BYTES
        self.trigger_bytes = number_option(options, "maxbytespertrigger", least=1)
        self.read_options = ReadOptions(
            topics=frozenset(names_option(options, "topic")),
            verify_bodies=flag_option(options, "verifybodies"),
        )

    def cut(self, start: int | None, end: int | None) -> list[InputPartition]:
        """Partitions of the offsets `[start, end)`."""
        from trioha_analysis.commitlog.files import cut_ranges, list_files  # noqa: PLC0415

        files = list_files(self.store)
        if start is None:
            start = files[0].start_offset if files else 0
        ranges = cut_ranges(files, start=start, end=end, range_bytes=self.range_bytes)
        return [LogPartition(each) for each in ranges]

    def read(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        import pyarrow as pa  # noqa: PLC0415

        from trioha_analysis.commitlog.columns import decode  # noqa: PLC0415
        from trioha_analysis.commitlog.reading import LogDamage, read_range  # noqa: PLC0415

        names = self.arrow_schema.names
        for found in read_range(self.store, wanted, self.read_options):
            if isinstance(found, LogDamage):
                if self.errors:
                    row = {
                        "file": str(found.path),
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

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.log = _Log(options, schema)
        if self.log.end_offset is not None:
            raise SourceError("option endOffset: a stream has no end")
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
