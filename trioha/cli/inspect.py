"""`trioha inspect`: print the records of a store."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from trioha.cli.console import err, out, print_json
from trioha.outside_text import escaped
from trioha.palette import NOTICE
from trioha.store.message_properties import parse_properties
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Blank, Record

BODY_SHOWN_BYTES = 60
_CALENDAR_END_MS = 253_402_300_800_000
"""The year 10000."""


def inspect(
    store: Path,
    *,
    from_: Annotated[int | None, Parameter(name="--from")] = None,
    limit: int | None = None,
    json: bool = False,
) -> int:
    """Print the records of a commit log, one line each, in the order of their offsets.

    Works on any RocketMQ store, and beside a node or broker that is using it.

    Parameters
    ----------
    store
        A storePathRootDir, or its commitlog folder.
    from_
        Physical offset of the first record to print, or of a byte in it.
    limit
        Print at most so many records.
    json
        Print a JSON object for each record, the body in base64.
    """
    log = ReadOnlyCommitLog.open(store)
    start = log.min_offset if from_ is None else from_
    if (holder := log.record_start(start)) is not None and holder != start:
        err().print(f"offset {start} is in the record at {holder}")
        start = holder
    for count, record in enumerate(log.records(start)):
        if limit is not None and count >= limit:
            break
        if json:
            print_json(_as_json(record))
        else:
            out().print(_as_line(record), soft_wrap=True)
    return 0


def _as_json(record: Record | Blank) -> dict[str, Any]:
    if isinstance(record, Blank):
        return {"physicalOffset": record.physical_offset, "size": record.total_size, "blank": True}
    return {
        "physicalOffset": record.physical_offset,
        "size": record.total_size,
        "magic": f"{record.magic:08x}",
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "msgId": record.message_id,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCRC": record.body_crc,
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": str(record.born_host),
        "storeTimestamp": record.store_timestamp_ms,
        "storeHost": str(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": parse_properties(record.properties_raw),
        "body": base64.b64encode(record.body).decode(),
    }


def _as_line(record: Record | Blank) -> Text:
    line = Text.assemble((f"{record.physical_offset:>12}", "bold"), f" {record.total_size:>8} B  ")
    if isinstance(record, Blank):
        return line.append("end of the file", "dim")
    body = record.body[:BODY_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    more = f" +{len(record.body) - BODY_SHOWN_BYTES} B" if len(record.body) > BODY_SHOWN_BYTES else ""
    properties = " ".join(f"{key}={value}" for key, value in parse_properties(record.properties_raw).items())
    line.append(escaped(record.topic), NOTICE.terminal)
    line.append(f"@{record.queue_id}:{record.queue_offset}  {_moment(record.store_timestamp_ms)}  ")
    line.append(escaped(body)).append(more, "dim")
    return line.append(f"  {escaped(properties)}", "dim")


def _moment(time_ms: int) -> str:
    """UTC time of a record; the number itself if it is beyond the calendar, as a damaged record's may be."""
    if not 0 <= time_ms < _CALENDAR_END_MS:
        return f"{time_ms} ms"
    return f"{datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03d}"
