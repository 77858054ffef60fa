"""One-way sends: stored, counted and recorded as others are, and answered never."""

from __future__ import annotations

import pytest

from tests.broker.test_processor import PEER, Broker
from tests.remoting.test_send_runs import plain, send
from trioha.deferred import Deferred
from trioha.ha.meter import LagClock
from trioha.metadata.topics import TopicConfig
from trioha.recording.events import Kind


class PollingBroker(Broker):
    """A SYNC_MASTER that notes pushes to its slave, and polls for acks."""

    def __init__(self, tmp_path):
        super().__init__(tmp_path, need=1)
        self.topics.put(TopicConfig("Orders", 4, 4))
        self.pushes, self.polled = 0, []
        self.group_commit._push = self.push
        self.group_commit._poll_acks = self.polled.append

    def push(self):
        self.pushes += 1

    def acknowledge(self):
        """The slave has all."""
        self.replicas.acknowledge(1, replica="a", ack_offset=self.log.max_offset, lag_clock=LagClock())


@pytest.fixture
async def master(tmp_path):
    broker = PollingBroker(tmp_path)
    broker.acknowledge()
    return broker


@pytest.mark.parametrize("is_oneway", [False, True])
async def test_a_lone_send_is_pushed_at_once_and_polled_for_if_it_is_answered(master, is_oneway):
    ((command, _),) = plain(send(oneway=is_oneway))
    put = master.processor(command, PEER)
    assert isinstance(put, Deferred)
    poll = master.group_commit.end_turn()
    assert (master.pushes, poll is None) == (1, is_oneway)
    if poll is not None:
        poll()
    assert len(master.polled) == (not is_oneway)
    master.acknowledge()
    await put
    assert master.puts.statuses == {"PUT_OK": 1}
    kinds = (Kind.PUT, Kind.WAIT_BEGIN, Kind.WAIT_END)
    assert [len(master.events.of(kind)) for kind in kinds] == [1, 1, 1]
