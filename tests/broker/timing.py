"""Settings of timers for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import evolve

from trioha.broker.timer_messages import TimerMessages, TimerSettings

TIMER_SETTINGS: Final = TimerSettings(
    is_enabled=True,
    precision_ms=1000,
    delay_ms_max=259_200_000,
    roll_window_ms=172_800_000,
    per_slot_max=2**31 - 1,
    recall_enabled=False,
)
"""RocketMQ's defaults."""


def timer_messages(now_ms: Callable[[], int], **changes: object) -> TimerMessages:
    """Of a broker on which no timer waits; `changes` are of its settings."""
    return TimerMessages(
        evolve(TIMER_SETTINGS, **changes), now_ms=now_ms, waiting=lambda _slot_ms: 0, broker_name="broker-a"
    )
