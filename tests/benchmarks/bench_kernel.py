"""The loops over records, compiled and in plain Python, side by side in one process: CPU time.

Walks are over a log of 1 KiB bodies in memory, 1 MiB a call as a slave receives it; dispatch builds all files
anew in every round. Records have a UNIQ_KEY, one key and a tag, or no properties. Batches are of 32 messages
of 1 KiB. Medians of several rounds of user and system time, compiled and plain in turn.

Run it with `python tests/benchmarks/bench_kernel.py [--json] [--records N] [--rounds N]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

# The benchmarks are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_dispatch import BODY, FILE_BYTES, QUEUES, dispatch, make_log
from trioha.remoting.message_batch import batch_items, encode_batch_body
from trioha.store import compiled
from trioha.store.batch_records import batch_record_sizes, common_sizes, encode_batch
from trioha.store.commit_log import CommitLog
from trioha.store.messages import BatchItem, Message, MessageBatch
from trioha.store.put_limits import encoded_topic
from trioha.store.record import Host
from trioha.store.record_layout import ScanEnd, scan_boundaries, scan_records

RECEIVED_BYTES = 1 << 20
BATCH = 32


def make_bare_log(folder: Path, *, records: int) -> CommitLog:
    """A log of records without properties."""
    log = CommitLog(
        folder, file_bytes=FILE_BYTES, message_bytes_max=4 << 20, store_host=Host.parse("127.0.0.1", 1)
    )
    folder.mkdir(parents=True)
    for number in range(records):
        log.append(Message(topic="BenchTopic", queue_id=number % QUEUES, body=BODY))
    return log


def walk(scan: Callable[[memoryview, int, int, int], ScanEnd], view: memoryview) -> None:
    """Scan the log, a MiB at a time."""
    at, end = 0, len(view)
    while at < end:
        at = scan(view, at, min(at + RECEIVED_BYTES, end), at).at


def encode_batches(*, count: int) -> None:
    """Make records of batches, from the bytes that a producer sends."""
    host = Host.parse("127.0.0.1", 1)
    body = encode_batch_body([BatchItem(BODY, b"UNIQ_KEY\x017F00000100002A139A5553B5F2F80000\x02")] * BATCH)
    topic, version_2, _ = encoded_topic("BenchTopic")
    for _ in range(count):
        batch = MessageBatch("BenchTopic", 0, batch_items(body), born_host=host)
        sizes = common_sizes(
            batch, topic=topic, store_host=host, body_bytes_max=4 << 20
        ) or batch_record_sizes(batch, topic=topic, store_host=host)
        encode_batch(
            batch,
            sizes,
            topic=topic,
            version_2=version_2,
            physical_offset=0,
            queue_offset=0,
            store_timestamp_ms=0,
            store_host=host,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=100_000, help="at most what 256 MiB hold")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not compiled.IS_COMPILED:
        sys.exit(f"nothing to compare: the kernel is {compiled.DESCRIPTION}")
    took: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        log = make_log(root / "log", records=options.records)
        bare = make_bare_log(root / "bare", records=options.records)
        view = memoryview(bytes(log.files[0].view[: log.max_offset]))
        gigabytes = len(view) / 1e9
        millions = options.records / 1e6
        folders = (root / f"built-{number}" for number in range(1 << 20))
        works: dict[str, tuple[float, Callable[[], object]]] = {
            "walk, s/GB": (gigabytes, partial(walk, partial(scan_records, check_crc=False), view)),
            "walk and CRC, s/GB": (gigabytes, partial(walk, scan_records, view)),
            "walk over boundaries, s/GB": (gigabytes, partial(walk, scan_boundaries, view)),
            "dispatch, a tag and two keys, us/record": (
                millions,
                lambda: dispatch(log, next(folders), records=options.records, keys=2),
            ),
            "dispatch, no properties, us/record": (
                millions,
                lambda: dispatch(bare, next(folders), records=options.records, keys=0),
            ),
            "batches of 32 to records, us/message": (
                millions,
                partial(encode_batches, count=options.records // BATCH),
            ),
        }
        for _ in range(options.rounds):
            for what, (amount, work) in works.items():
                for is_compiled in (True, False):
                    compiled.IS_COMPILED = is_compiled
                    began = time.process_time()
                    work()
                    mode = "compiled" if is_compiled else "plain"
                    took.setdefault((what, mode), []).append((time.process_time() - began) / amount)
        log.close()
        bare.close()
    medians = {key: statistics.median(times) for key, times in took.items()}
    if options.json:
        print(json.dumps({f"{what}, {mode}": median for (what, mode), median in medians.items()}))
        return
    print(f"{'':42} {'compiled':>10} {'plain':>10} {'factor':>8}")
    for what in works:
        fast, slow = medians[what, "compiled"], medians[what, "plain"]
        print(f"{what:42} {fast:10.3f} {slow:10.3f} {slow / fast:8.1f}")


if __name__ == "__main__":
    main()
