"""Timers and limits of the HA protocol."""

from __future__ import annotations

import math

from attrs import frozen


@frozen
class HaSettings:
    """Timers and limits of the HA protocol, for both sides."""

    heartbeat_interval_s: float
    """haSendHeartbeatInterval: time without sending after which a heartbeat is sent."""
    housekeeping_interval_s: float
    """haHousekeepingInterval: time without receiving after which the connection is closed."""
    transfer_batch_bytes: int
    """haTransferBatchSize: longest body of a frame to a slave in step."""
    flow_bytes_per_s: int | None = None
    """maxHaTransferByteInSecond with haFlowControlEnable: bytes to one slave in a second, headers and bodies;
    None for no limit."""
    first_report_timeout_s: float = math.inf
    """trioha.haFirstReportTimeout: how long a master waits for a connection's first report."""
    transfer_batch_bytes_max: int = 0
    """trioha.haTransferBatchMax: longest body of a frame to a slave that lags; frames do not grow
    if it is below `transfer_batch_bytes`."""
