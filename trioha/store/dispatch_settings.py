"""What dispatch builds, and how it reports a record that it cannot dispatch."""

from __future__ import annotations

from attrs import Factory, frozen

from trioha.store.message_offsets import MultiDispatch
from trioha.store.tags import DelayLevels


@frozen
class DispatchSettings:
    """What is built, and from which records."""

    message_index_enable: bool = True
    """messageIndexEnable."""
    enable_lmq: bool = False
    """enableLmq: names of light queues (`%LMQ%...`) mean their queue 0."""
    enable_multi_dispatch: bool = False
    """enableMultiDispatch: a record also enters the queues that its INNER_MULTI_DISPATCH names."""
    is_slave: bool = False
    """A slave stops at a record it cannot read, a master goes on after what it holds of that file."""
    delay_levels: DelayLevels = Factory(DelayLevels)
    sync_flush: bool = False
    """flushDiskType SYNC_FLUSH: records are dispatched when they are on disk."""

    @property
    def multi_dispatch(self) -> MultiDispatch:
        """Which messages get offsets of other queues, too."""
        return MultiDispatch(
            enabled=self.enable_multi_dispatch or self.enable_lmq, light_queues=self.enable_lmq
        )


@frozen
class DispatchFault:
    """A record that could not be dispatched as it is."""

    physical_offset: int
    reason: str
