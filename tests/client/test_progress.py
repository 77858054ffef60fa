"""How far a consumer is in a queue: what may be committed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trioha.client.progress import QueueProgress
from trioha.errors import LocalProtocolError


class Progress(RuleBasedStateMachine):
    """Messages are delivered, skipped and acknowledged in any order."""

    def __init__(self):
        super().__init__()
        self.progress = QueueProgress(10)
        self.unacknowledged = {}

    @rule(gap=st.integers(0, 3), size=st.integers(1, 100))
    def deliver(self, gap, size):
        offset = self.progress.next_offset + gap
        self.progress.deliver(offset, size)
        self.unacknowledged[offset] = size

    @rule(gap=st.integers(-8, 8))
    def skip(self, gap):
        offset = max(0, self.progress.next_offset + gap)
        self.progress.skip_to(offset)
        for known in [known for known in self.unacknowledged if known >= offset]:
            del self.unacknowledged[known]

    @rule(data=st.data())
    def acknowledge(self, data):
        offset = data.draw(st.sampled_from(sorted(self.unacknowledged) or [0]))
        assert self.progress.acknowledge(offset) == self.unacknowledged.pop(offset, 0)

    @invariant()
    def nothing_is_committed_before_it_is_acknowledged(self):
        progress = self.progress
        assert progress.committable_offset == min(self.unacknowledged, default=progress.next_offset)
        assert progress.unacknowledged == len(self.unacknowledged)
        assert progress.unacknowledged_bytes == sum(self.unacknowledged.values())


TestProgress = Progress.TestCase


@given(st.integers(0, 9))
def test_a_message_before_the_next_offset_is_refused(offset):
    with pytest.raises(LocalProtocolError):
        QueueProgress(10).deliver(offset, 1)
