"""The recording of a node's session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from trioha.config.broker import BrokerConfig
from trioha.recording.events import EventSink, NoSink
from trioha.unwritten import RECORDING, Unwritten

CONSEQUENCE: Final = (
    "the node goes on, and so does the recording when it can, with the number of events it lacks"
)


@asynccontextmanager
async def recording(
    config: BrokerConfig, *, unwritten: Unwritten | None = None
) -> AsyncIterator[tuple[EventSink, Path | None]]:
    """The sink for this node's events, and the folder of its session, None without a recording.

    The recorder ends after all tasks that emit events. A recording that cannot begin yet, for which the
    folder is None, too, or cannot go on, is reported to `unwritten`, and holds up nothing.
    """
    unwritten = unwritten or Unwritten()
    if config.record_dir is None:
        yield NoSink(), None
        return
    from trioha.recording.layout import SessionIdentity  # noqa: PLC0415
    from trioha.recording.recorder import Recorder  # noqa: PLC0415

    recorder = Recorder(
        config.record_dir,
        identity=SessionIdentity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            role=config.broker_role.value,
            settings={
                "haSendHeartbeatInterval": config.ha_send_heartbeat_interval,
                "haHousekeepingInterval": config.ha_housekeeping_interval,
                "haTransferBatchSize": config.ha_transfer_batch_size,
                "trioha.haTransferBatchMax": config.ha_transfer_batch_max,
                "trioha.haAckMode": config.ha_ack_mode.value,
                "haMaxGapNotInSync": config.ha_max_gap_not_in_sync,
                "haMaxTimeSlaveNotCatchup": config.ha_max_time_slave_not_catchup,
                "slaveTimeout": config.slave_timeout,
                "syncFlushTimeout": config.sync_flush_timeout,
                "inSyncReplicas": config.in_sync_replicas,
                "minInSyncReplicas": config.min_in_sync_replicas,
                "enableControllerMode": config.enable_controller_mode,
                "allAckInSyncStateSet": config.all_ack_in_sync_state_set,
                "enableAutoInSyncReplicas": config.enable_auto_in_sync_replicas,
                "flushDiskType": config.flush_disk_type.value,
                "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
            },
        ),
        node_id=config.broker_id,
        on_error=lambda reason: unwritten.fail(RECORDING, reason, consequence=CONSEQUENCE),
        on_written=lambda: unwritten.succeed(RECORDING),
    )
    # Shielded: when the node is cancelled, the recorder ends after its other tasks.
    scope = trio.CancelScope(shield=True)

    async def record(*, task_status: trio.TaskStatus[bool]) -> None:
        with scope:
            await recorder.run(task_status=task_status)

    async with trio.open_nursery() as recording:
        has_begun = await recording.start(record)
        try:
            yield recorder, recorder.path if has_begun else None
        finally:
            scope.cancel()
