"""How the transactions of a broker are handled."""

from __future__ import annotations

from attrs import frozen


@frozen
class TransactionSettings:
    """Settings of transactions."""

    broker_name: str = "broker"
    broker_ip: str = "127.0.0.1"
    """brokerIP1, for remarks."""
    timeout_ms: int = 6000
    """transactionTimeOut."""
    check_interval_s: float = 30.0
    """transactionCheckInterval."""
    check_max: int = 15
    """transactionCheckMax."""
    is_rejecting: bool = False
    """rejectTransactionMessage."""
    op_interval_s: float = 0.0
    """transactionOpBatchInterval; 0 for an op record of 4.9 for each decision."""
    op_bytes_max: int = 4096
    """transactionOpMsgMaxSize."""
    open_max: int = 100_000
    """trioha.openTransactionsMax."""
    reserved_ms: int = 72 * 3_600_000
    """fileReservedTime: an older half message is given up, since its record may be deleted."""
