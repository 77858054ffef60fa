"""Files of a recorded session: names, segment header, record fields and `session.json`.

```
SESSION/
  session.json                     what the records mean and who wrote them; written once
  events/<20-digit base seq>.seg   segments of records
  facts.jsonl                      one JSON object a line: facts that do not fit a record
```

Segment header, 64 bytes, little-endian:

| offset | type | field |
|---|---|---|
| 0  | 8 bytes | magic `TRIOHAS1` |
| 8  | u16 | version, 1 |
| 10 | u16 | bytes of a record, 48 |
| 12 | u32 | bytes of this header, 64 |
| 16 | i64 | seq of the first record |
| 24 | i64 | monotonic clock at the first record, ns |
| 32 | 32 bytes | zeros |

The records follow without a gap. Their number is not stored: `(file size - 64) // 48` are whole, and a torn
last one does not count. `trioha.recording.events` describes records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, Final

from attrs import field, frozen

from trioha.recording.events import (
    RECORD_BYTES,
    CloseReason,
    ControllerEvent,
    Direction,
    GroupRole,
    HaState,
    Kind,
    LinkEvent,
    PutStatus,
    SetEvent,
)

FORMAT: Final = "trioha-session"
VERSION: Final = 1
MINOR_VERSION: Final = 1
"""Of `session.json`. It grows with new kinds and facts, which readers of the same version pass over."""

SESSION_FILE: Final = "session.json"
EVENTS_FOLDER: Final = "events"
FACTS_FILE: Final = "facts.jsonl"
PACKED_SUFFIX: Final = ".parquet"
"""Suffix of a segment that `trioha session pack` has packed: see `trioha_sessions.packed`."""

MAGIC: Final = b"TRIOHAS1"
HEADER: Final = Struct("<8sHHIqq32x")
HEADER_BYTES: Final = 64
assert HEADER.size == HEADER_BYTES

FIELDS: Final = (
    ("ts_ns", "<i8", 0),
    ("seq", "<i8", 8),
    ("kind", "u1", 16),
    ("flags", "u1", 17),
    ("node", "<u2", 18),
    ("conn", "<i4", 20),
    ("offset", "<i8", 24),
    ("aux", "<i8", 32),
    ("size", "<i4", 40),
    ("check", "<u4", 44),
)
"""Fields of a record: name, NumPy type, offset in bytes."""

CLOSED_NOTE: Final = "session closed"
"""Text of the last fact of a session that ended in order."""

ACCEPTED_RECORDS_MAX: Final = 16_000_000
"""No reader accepts more records in a segment. A recorder begins a new one after 2,000,000."""

SOURCE_NODE: Final = "node"
"""`source` of a session: the node itself recorded it."""

NODE_ID_MAX: Final = 32767
"""Largest brokerId that fits a record."""


@frozen
class SessionIdentity:
    """The node whose session it is."""

    cluster_name: str
    """brokerClusterName."""
    broker_name: str
    """brokerName."""
    broker_id: int
    """brokerId."""
    role: str
    """brokerRole: ASYNC_MASTER, SYNC_MASTER or SLAVE."""
    settings: Mapping[str, object] = field(factory=dict)
    """The HA settings in force, by their broker.conf keys; JSON values."""


def segment_name(base_seq: int) -> str:
    """File name of the segment whose first record is `base_seq`."""
    return f"{base_seq:020d}.seg"


def encode_header(*, base_seq: int, base_ts_ns: int) -> bytes:
    """Header of a segment."""
    return HEADER.pack(MAGIC, VERSION, RECORD_BYTES, HEADER_BYTES, base_seq, base_ts_ns)


def encode_session(
    identity: SessionIdentity, *, monotonic_ns: int, wall_ns: int, program_version: str
) -> bytes:
    """Content of `session.json`. The two clocks, in ns, were read together."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "minor_version": MINOR_VERSION,
        "record_bytes": RECORD_BYTES,
        "byte_order": "little",
        "fields": [{"name": name, "dtype": dtype, "offset": offset} for name, dtype, offset in FIELDS],
        "kinds": _table(Kind),
        "states": _table(HaState),
        "put_statuses": _table(PutStatus),
        "close_reasons": _table(CloseReason),
        "link_events": _table(LinkEvent),
        "directions": _table(Direction),
        "roles": _table(GroupRole),
        "set_events": _table(SetEvent),
        "controller_events": _table(ControllerEvent),
        "node": {
            "clusterName": identity.cluster_name,
            "brokerName": identity.broker_name,
            "brokerId": identity.broker_id,
            "role": identity.role,
        },
        "source": SOURCE_NODE,
        "clock": {"monotonic_ns": monotonic_ns, "wall_ns": wall_ns},
        "settings": dict(identity.settings),
        "program": {"name": "trioha", "version": program_version},
    }
    return (json.dumps(document, indent=2, default=str) + "\n").encode()


def _table(names: type[IntEnum]) -> dict[str, str]:
    return {str(int(member)): member.name for member in names}
