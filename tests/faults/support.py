"""Clusters whose tests play their faults themselves, and stores that are made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

from attrs import evolve

from tests.faults.cluster import Cluster
from tests.faults.faults import Fault
from tests.faults.invariants import check_logs_equal, check_promises
from tests.faults.plan import Plan, Planned, Setup
from tests.faults.producer import LoadSettings, Promise
from trioha.store.message_properties import encode_properties
from trioha.store.messages import Message
from trioha.store.opening import open_store
from trioha.store.record import Host
from trioha.store.store_settings import StoreSettings

FILE_BYTES = 4096
KEYS = tuple(f"K{number}" for number in range(30))


def plan_of(*, faults: Iterable[Fault] = (), **settings: Any) -> Plan:
    """A synchronous cluster whose puts wait longer than anything here takes, and no random faults.

    `faults` say whose disks meet any; the test plays them.
    """
    setup = Setup(
        role="SYNC_MASTER",
        slaves=1,
        in_sync_replicas=1,
        flush_disk_type="ASYNC_FLUSH",
        slave_flush_disk_type="ASYNC_FLUSH",
        file_bytes=1 << 20,
        transfer_batch_bytes=32768,
        heartbeat_ms=200,
        housekeeping_ms=3000,
        slave_timeout_ms=8000,
        load=LoadSettings(concurrency=4, rate=200.0, body_bytes_max=2000),
    )
    planned = tuple(Planned(0.0, fault) for fault in faults)
    return Plan(seed=0, setup=evolve(setup, **settings), faults=planned, master_stops_first=True)


def settle_and_compare(cluster: Cluster) -> int:
    """Mend and stop all; every log is the same and holds what was promised. Returns its end."""
    end_offset = cluster.settle()
    cluster.end()
    stores = [cluster.store(name) for name in cluster.plan.setup.nodes]
    assert check_logs_equal(stores, end_offset=end_offset) == []
    assert check_promises(cluster.promises, stores, copies=len(stores), when="at the end") == []
    assert cluster.violations == []
    return end_offset


def fill(root: Path, keys: Iterable[str] = KEYS) -> tuple[list[Promise], int]:
    """Make a store of several files with a message for each key; the promises about them, and its end."""
    store = open_store(
        StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=FILE_BYTES,
            message_bytes_max=2000,
            store_host=Host.parse("127.0.0.1", 1),
        )
    )
    promises = []
    for key in keys:
        body = f"body of {key}".encode() * 20
        appended = store.commit_log.append(
            Message(topic="T", queue_id=0, body=body, properties=encode_properties({"UNIQ_KEY": key}))
        )
        promises.append(Promise(key, appended.physical_offset, crc32(body)))
    end_offset = store.commit_log.max_offset
    store.close()
    return promises, end_offset
