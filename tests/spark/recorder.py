"""A process that records: `python -m tests.spark.recorder SESSION SEGMENT_RECORDS`.

For each line on stdin, a number, it writes so many blocks of puts, one after the other.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.sessions.sessions import WALL_NS, Event, pack
from trioha.recording.events import Kind
from trioha.recording.layout import SessionIdentity, encode_session
from trioha.recording.writer import Block, SessionWriter

BLOCK_PUTS = 50
PAUSE_S = 0.005


def main() -> None:
    path, segment_records = Path(sys.argv[1]), int(sys.argv[2])
    identity = SessionIdentity("cluster", "broker-a", 0, "SYNC_MASTER")
    document = encode_session(identity, monotonic_ns=0, wall_ns=WALL_NS, program_version="0")
    writer = SessionWriter(path, document=document, base_ts_ns=0, segment_records=segment_records)
    written = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            numbers = range(written + 1, written + BLOCK_PUTS + 1)
            records = pack(Event(number * 1000, Kind.PUT, offset=number, size=7) for number in numbers)
            writer.write(Block(records, len(records), []))
            written += BLOCK_PUTS
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
