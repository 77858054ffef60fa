"""What a RocketMQ 5 master left in a log for delivery, and what trioha does not read."""

from __future__ import annotations

from collections.abc import Iterator

from trioha.broker.pending import MASTER_REMEDY, REMEDY, UNREAD_REMEDY, pending_text
from trioha.broker_status import PendingStatus
from trioha.doctor.case import Case
from trioha.doctor.findings import Observation, check
from trioha.severity import Severity
from trioha.store.rocksdb_stores import keys_of, stores_of_master

PENDING = "pending-not-delivered"
UNREAD_STORE = "unread-store"


@check(
    PENDING,
    Severity.WARNING,
    mend="Set `timerWheelEnable=true` at the master: it delivers timers, and gives popped messages again. "
    "All of it stays in the log for `fileReservedTime`.",
)
def pending_not_delivered(case: Case) -> Iterator[Observation]:
    """Timers and popped messages wait in a log for nobody.

    A trioha node that has become the successor of a RocketMQ 5 master, or was started on its store, has them
    in its log, and counts them at the start of each role as master. It delivers timers, and gives
    popped messages again, unless `timerWheelEnable` is false. A timer whose copy is in the log, or
    that was recalled, is not counted; of popped messages those that no acknowledgement in the log names, and
    that the master had not given again when its offsets were last copied. In the folder of a store, `trioha
    doctor STORE` names what a node that is started on it could not deliver: records in unknown formats.
    """
    doubts = {store.path: store.pending_doubt for store in case.stores}
    for subject, pending in _stores(case):
        if text := pending_text(pending):
            if doubt := doubts.get(subject):
                text += f"; counted without RocketMQ's check point: {doubt}"
            yield Observation(subject=subject, evidence=text, remedy=REMEDY)


@check(
    UNREAD_STORE,
    Severity.WARNING,
    mend="Let a RocketMQ broker be the master of that store, or see that nothing in it is needed: trioha "
    "builds its own consume queues from the log; popped messages, timers and users that are only there are "
    "not used.",
)
def unread_store(case: Case) -> Iterator[Observation]:
    """A store has RocksDB stores of a RocketMQ 5 broker, which trioha does not read.

    RocketMQ keeps consume queues there with `storeType=defaultRocksDB`, popped messages with
    `popConsumerKVServiceEnable`, timers with `timerRocksDBEnable`, users and rules with access control 2.0.
    None of it is in the log, so that a slave has no copy: a trioha slave names the settings of its master,
    and remembers them for a take-over. A store without data is not named.
    """
    for subject, pending in _stores(case):
        if pending.unread_stores:
            yield Observation(
                subject=subject, evidence=", ".join(pending.unread_stores), remedy=UNREAD_REMEDY
            )
    for pair in case.pairs:
        if pair.slave.is_trioha and (keys := keys_of(pair.master.running_config)):
            yield Observation(
                subject=pair.label, evidence=", ".join(stores_of_master(keys)), remedy=MASTER_REMEDY
            )


def _stores(case: Case) -> Iterator[tuple[str, PendingStatus]]:
    """Of running masters, and of folders."""
    for node in case.running:
        if node.status is not None and node.status.pending is not None:
            yield node.label, node.status.pending
    for store in case.stores:
        yield store.path, store.pending
