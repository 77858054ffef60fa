"""Commit logs to read: recorded ones and generated ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.archive.building import Put, made_log, record_at, write_store
from tests.store.support import VECTORS
from trioha.store.record_layout import MAGIC_V1
from trioha_analysis.commitlog.columns import TYPES, decode
from trioha_analysis.commitlog.files import OffsetRange, cut_ranges, list_files
from trioha_analysis.commitlog.reading import LogDamage, ReadOptions, read_range


def expected_rows(store: str) -> list[dict[str, Any]]:
    """The messages of a recorded store as RocketMQ decoded them, as rows of our columns."""
    document = json.loads((VECTORS / store / "expected.json").read_text())
    return [_row(message) for message in document["messages"] if not message.get("blank")]


def _row(message: dict[str, Any]) -> dict[str, Any]:
    born_host, born_port = message["bornHost"].split("|")
    store_host, store_port = message["storeHost"].split("|")
    body = base64.b64decode(message["body"] or "")
    return {
        "physical_offset": message["physicalOffset"],
        "size_bytes": message["size"],
        "version": 1 if message["magic"] == f"{MAGIC_V1:x}" else 2,
        "topic": message["topic"],
        "queue_id": message["queueId"],
        "queue_offset": message["queueOffset"],
        "flag": message["flag"],
        "sys_flag": message["sysFlag"],
        "born_timestamp_ms": message["bornTimestamp"],
        "born_host": str(ip_address(born_host)),
        "born_port": int(born_port),
        "store_timestamp_ms": message["storeTimestamp"],
        "store_host": str(ip_address(store_host)),
        "store_port": int(store_port),
        "reconsume_times": message["reconsumeTimes"],
        "prepared_transaction_offset": message["preparedTransactionOffset"],
        "body_crc": message["bodyCRC"],
        "body_bytes": len(body),
        "body": body,
        "properties": base64.b64decode(message["propertiesRaw"] or ""),
    }


def read_all(
    store: Path, ranges: Iterable[OffsetRange] | None = None, *, options: ReadOptions | None = None
) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    """All rows of a store with all columns, and start and size of all damage."""
    rows: list[dict[str, Any]] = []
    damage: list[tuple[int, int]] = []
    for wanted in cut_ranges(list_files(store)) if ranges is None else ranges:
        for found in read_range(store, wanted, options):
            if isinstance(found, LogDamage):
                damage.append((found.gap.start_offset, found.gap.size_bytes))
            else:
                rows += pa.RecordBatch.from_arrays(decode(found, list(TYPES)), names=list(TYPES)).to_pylist()
    return rows, damage


def put_of(body: bytes, **fields: Any) -> Put:
    """A message of a generated log; `fields` are those of `Put`."""
    return Put(body=body, queue_id=1, store_ms=1_700_000_000_001, properties=b"TAGS\x01t\x02", **fields)


def record(offset: int, body: bytes, **fields: Any) -> bytes:
    """A record as it stands at `offset`."""
    return record_at(offset, put_of(body, **fields))


def write_log(store: Path, bodies: Iterable[bytes], *, file_bytes: int) -> list[int]:
    """Write a store's log of these bodies, with blanks where files end; gives the offset of each record."""
    entries = made_log(map(put_of, bodies), file_bytes=file_bytes)
    write_store(store, entries, file_bytes=file_bytes)
    return [entry.offset for entry in entries if not entry.is_blank]


def write_files(store: Path, log: bytes | bytearray, *, file_bytes: int) -> None:
    """Write a log's bytes as files."""
    (store / "commitlog").mkdir(parents=True, exist_ok=True)
    for start in range(0, len(log), file_bytes):
        (store / "commitlog" / f"{start:020d}").write_bytes(log[start : start + file_bytes])
