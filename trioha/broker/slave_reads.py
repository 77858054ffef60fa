"""Where a group reads, and what a slave does with offsets that its queues do not have.

See docs/protocol/ha.md#reads-from-a-slave.

A consumer pulls from its master unless an answer suggests another broker id (`suggestWhichBrokerId`). A
client whose route does not have the suggested broker pulls from another one of the same name: so consumers
continue at a slave when their master is gone, and return with the first pull after the master is in their
route again, since the slave suggests the master.

| | 4.9.7 | 5.x | trioha |
|---|---|---|---|
| pull at a slave, slaveReadEnable=false | answered, suggests 0 | SYSTEM_BUSY | answered, suggests 0 |
| slaveReadEnable=true, the group lags far | whichBrokerWhenConsumeSlowly | the same | the same |
| slaveReadEnable=true, else | brokerId of the group | the same; at a slave 0 | brokerId of the group |
| offset that the slave does not have | code 20, at once | the same | see below |

A consumer may be at an offset that the slave does not have: beyond its end, because the slave lags, or before
its start. The master decides about such offsets, so the slave answers that the pull be repeated (code 20), at
the same offset. RocketMQ's slave does it at once, and a consumer whose master is gone repeats the pull
thousands of times a second. Here the pull waits like one at the queue's end; for `REPEAT_S` where the slave
is connected to its master, since the consumer can go there.
"""

from __future__ import annotations

from typing import Final

from trioha.store.reads import GetStatus

MASTER_ID: Final = 0
REPEAT_S: Final = 0.05
"""A consumer whose route does not have the master yet repeats its pull until the route is refreshed."""
SLAVE_MEMORY_PERCENT_LESS: Final = 10
"""A slave counts messages as old this much earlier: it has other work for its memory
(docs/protocol/ha.md#settings)."""

ELSEWHERE: Final = frozenset(
    (
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.NO_MATCHED_LOGIC_QUEUE,
        GetStatus.NO_MESSAGE_IN_QUEUE,
    )
)
"""Statuses of reads at offsets that a slave's queue does not have; its master's queue may have them."""


def always() -> bool:
    """For brokers without a master."""
    return True
