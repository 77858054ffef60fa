"""Dispatch: consume queues and index built from a log of 1 KiB messages, on one core.

Each message has a UNIQ_KEY as Java's client makes it, one key and a tag. Prints records per second, the
median of several rounds; every round builds all files anew and checks that each record is in its queue and
in the index.

Run it with `python tests/benchmarks/bench_dispatch.py [--json] [--records N] [--rounds N] [--profile]`.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from pathlib import Path

from trioha.store import compiled
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.dispatch import Dispatcher
from trioha.store.index_service import IndexService
from trioha.store.message_properties import encode_properties
from trioha.store.messages import Message
from trioha.store.record import Host

FILE_BYTES = 256 << 20
QUEUES = 8
BODY = bytes(range(256)) * 4


def make_log(folder: Path, *, records: int, queues: int = QUEUES) -> CommitLog:
    """A log whose records go to its `queues` in turn."""
    log = CommitLog(
        folder, file_bytes=FILE_BYTES, message_bytes_max=4 << 20, store_host=Host.parse("127.0.0.1", 1)
    )
    folder.mkdir(parents=True)
    for number in range(records):
        properties = {
            "KEYS": f"order-{number}",
            "UNIQ_KEY": f"7F0000012DB4{0x0E2F2A67:08X}{number >> 16:08X}{number & 0xFFFF:04X}",
            "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "TAGS": f"Tag{number % 16}",
            "WAIT": "true",
        }
        log.append(
            Message(
                topic="BenchTopic",
                queue_id=number % queues,
                body=BODY,
                properties=encode_properties(properties),
            )
        )
    return log


def dispatch(log: CommitLog, folder: Path, *, records: int, keys: int = 2) -> float:
    """Seconds to build queues and index of the whole log; `keys` is the number of keys of each record."""
    queues = ConsumeQueues(folder)
    index = IndexService.open(folder)
    dispatcher = Dispatcher(log, queues, index, position=log.min_offset)
    began = time.perf_counter()
    while dispatcher.position < log.max_offset:
        dispatcher.dispatch(log.max_offset, records_max=5000)
    took = time.perf_counter() - began
    assert dispatcher.faults == 0
    assert sum(queue.max_offset for queue in queues) == records
    assert sum(file.index_count - 1 for file in index.files) == keys * records
    for number in (0, records // 2, records - 1) if keys else ():
        found = list(index.candidates("BenchTopic", f"order-{number}", begin_ms=0, end_ms=1 << 62))
        queue = queues.find("BenchTopic", number % QUEUES)
        assert queue is not None
        entry = queue.entry(number // QUEUES)
        assert entry is not None
        assert entry.physical_offset in found
    queues.close()
    index.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        log = make_log(root / "log", records=options.records)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(dispatch, log, root / "profile", records=options.records)
            pstats.Stats(profile).sort_stats("tottime").print_stats(12)
        rates = []
        for number in range(options.rounds):
            took = dispatch(log, root / f"round-{number}", records=options.records)
            rates.append(options.records / took)
        log.close()
    result = {f"dispatch ({compiled.DESCRIPTION}), records/s": statistics.median(rates)}
    if options.json:
        print(json.dumps(result))
    else:
        for what, value in result.items():
            print(f"{what:45} {value:12,.0f}   (rounds: {', '.join(f'{rate:,.0f}' for rate in rates)})")


if __name__ == "__main__":
    main()
