"""Dispatch: consume queues and index built from a log of 1 KiB messages, on one core.

Each message has a UNIQ_KEY as Java's client makes it, one key and a tag. Prints records per second, the
median of several rounds; every round builds all files anew and checks that each record is in its queue and
in the index.

With `--lone` each message comes alone, while a consumer waits: it has a UNIQ_KEY and no tags, as most of
Java's producers send it. Prints CPU time a record, the least and the median of several rounds: of the
dispatcher, also with slices of several records, and of the whole service, from the moment that the log has
grown to the wait for the next record.

Run it with `python tests/benchmarks/bench_dispatch.py [--json] [--records N] [--rounds N] [--profile]
[--lone]`.
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

import trio
import trio.testing

from trioha.store import compiled, dispatch_service
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_service import DispatchService
from trioha.store.index_service import IndexService
from trioha.store.message_properties import encode_properties
from trioha.store.message_store import MessageStore, StoreSettings
from trioha.store.messages import Message
from trioha.store.record import Host

FILE_BYTES = 256 << 20
QUEUES = 8
BODY = bytes(range(256)) * 4
SLICES = (1, 2, 8, 64, 1000)
"""Records that are dispatched together."""
WARM_RECORDS = 1000
"""Those before the ones that are measured: they make files and find queues."""


def make_log(
    folder: Path, *, records: int, queues: int = QUEUES, has_only_unique_key: bool = False
) -> CommitLog:
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
        if has_only_unique_key:
            del properties["KEYS"], properties["TAGS"]
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


def slices_us(log: CommitLog, ends: list[int], folder: Path, *, records: int) -> float:
    """CPU us a record when the dispatcher gets `records` at a time; `ends` has the end of each record."""
    queues = ConsumeQueues(folder)
    index = IndexService.open(folder)
    dispatcher = Dispatcher(log, queues, index, position=log.min_offset)
    dispatcher.dispatch(ends[WARM_RECORDS - 1], records_max=WARM_RECORDS)
    slices = ends[WARM_RECORDS + records - 1 :: records]
    began_s = time.process_time()
    for end in slices:
        dispatcher.dispatch(end, records_max=records)
    took_s = time.process_time() - began_s
    assert (dispatcher.position, dispatcher.faults) == (slices[-1], 0)
    queues.close()
    index.close()
    return took_s * 1e6 / (len(slices) * records)


def lone_us(folder: Path, *, records: int) -> float:
    """CPU us a record that the service takes; what the records' appends take is measured without it."""
    took_s = [trio.run(_appends_s, folder / str(serves), records, serves) for serves in (True, False)]
    return (took_s[0] - took_s[1]) * 1e6 / records


async def _appends_s(folder: Path, records: int, serves: bool) -> float:
    """CPU s of one append in each turn of the scheduler, and of their dispatch."""
    settings = StoreSettings(
        root=folder,
        commit_log_directory=folder / "commitlog",
        file_bytes=FILE_BYTES,
        message_bytes_max=4 << 20,
        store_host=Host.parse("127.0.0.1", 1),
    )
    store = MessageStore.open(settings)
    store.dispatcher.is_awaited = lambda: True
    unique = encode_properties({"UNIQ_KEY": "7F0000012DB40E2F2A6700000000AAAA", "WAIT": "true"})
    messages = [
        Message(topic="BenchTopic", queue_id=queue_id, body=BODY, properties=unique)
        for queue_id in range(QUEUES)
    ]
    async with trio.open_nursery() as nursery:
        if serves:
            nursery.start_soon(DispatchService(store, sync_flush=False).run)
        for number in range(WARM_RECORDS):
            store.commit_log.append(messages[number % QUEUES])
        if serves:
            await store.dispatcher.dispatched.reached(store.commit_log.max_offset)
        await trio.testing.wait_all_tasks_blocked()
        began_s = time.process_time()
        for number in range(records):
            store.commit_log.append(messages[number % QUEUES])
            # Until the record is dispatched and the service waits again.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        took_s = time.process_time() - began_s
        assert not serves or store.dispatcher.position == store.commit_log.max_offset
        nursery.cancel_scope.cancel()
    store.close()
    return took_s


def lone(root: Path, *, records: int, rounds: int) -> dict[str, list[float]]:
    """CPU us a record, of each round."""
    # Without time between the records they would be gathered.
    dispatch_service.AWAITED_GATHER_S = 0.0
    log = make_log(root / "log", records=records + WARM_RECORDS, has_only_unique_key=True)
    ends = []
    at = log.min_offset
    while at < log.max_offset:
        at += int.from_bytes(log.read(at, 4), "big")
        ends.append(at)
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for size in SLICES:
            folder = root / f"slices-{number}-{size}"
            took_us = slices_us(log, ends, folder, records=size)
            found.setdefault(f"dispatch of {size} ({compiled.DESCRIPTION}), us of CPU a record", []).append(
                took_us
            )
        took_us = lone_us(root / f"lone-{number}", records=records)
        found.setdefault(f"service, lone ({compiled.DESCRIPTION}), us of CPU a record", []).append(took_us)
    log.close()
    return found


def _print(found: dict[str, list[float]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({what: statistics.median(took_us) for what, took_us in found.items()}))
        return
    for what, took_us in found.items():
        print(f"{what:55} least {min(took_us):7.2f}   median {statistics.median(took_us):7.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--lone", action="store_true", help="of at most 20,000 records")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if options.lone:
            found = lone(root, records=min(options.records, 20_000), rounds=options.rounds)
            _print(found, as_json=options.json)
            return
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
