# What `events.c` offers.

from trioha.recording.writer import Run
from trioha.store.record_layout import Buffer

SOURCE_SHA256: str

def fill_runs(block: bytearray, runs: list[Run], /) -> None: ...
def number_events(events: Buffer, seq: int, /) -> None: ...
def last_events(events: Buffer, /) -> dict[int, int]: ...
