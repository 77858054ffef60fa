"""Packs copies of segments: `python -m trioha_analysis.packed_copy SESSION TARGET SEQ [SEQ ...]`.

A program of its own, since an archiver stays small without PyArrow. The copies have the names of segments
in the folder TARGET. For each one it prints a JSON object: `records`, and the monotonic clock of the first
and the last of them, `firstNs` and `lastNs`; or `error`, why there is no copy.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from trioha.errors import StoreError
from trioha.recording.layout import PACKED_SUFFIX
from trioha.recording.reader import Session, open_session
from trioha_analysis.packing import pack_copy
from trioha_sessions.segments import Damage, find_segment


def main(arguments: Sequence[str]) -> int:
    """Pack the segments whose first records are SEQ."""
    path, target, *seqs = arguments
    session = open_session(Path(path))
    for seq in map(int, seqs):
        try:
            result = _packed(session, seq, Path(target) / f"{seq:020d}{PACKED_SUFFIX}")
        except StoreError as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)
    return 0


def _packed(session: Session, seq: int, target: Path) -> dict[str, object]:
    segment = find_segment(session, seq)
    if segment is None:
        raise StoreError(f"there is no segment of record {seq} any more", path=session.path)
    if isinstance(segment, Damage):
        raise StoreError(segment.reason, path=segment.path)
    if not segment.records:
        raise StoreError("the segment has no record", path=segment.path)
    times_ns = pack_copy(session, segment, target)["ts_ns"]
    return {"records": len(times_ns), "firstNs": int(times_ns[0]), "lastNs": int(times_ns[-1])}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
