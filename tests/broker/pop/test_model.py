"""Random pops, acknowledgements, changes, expiries and masters that are killed, beside a small model.

What is acknowledged, with an answer, never comes again; what is not acknowledged comes again. A second group
pops a queue in order: it is given no message before those ahead of it are acknowledged or their time is over,
and none is passed over. After a kill it may be given acknowledged ones again, from one of them on.
"""

import shutil

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.pop.popping import GROUP, Popping
from tests.broker.sending import WallClock
from tests.levels import by_level

STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 4)),
    st.tuples(st.just("take"), st.integers(1, 6)),
    st.tuples(st.just("ack"), st.integers(0, 9)),
    st.tuples(st.just("change"), st.integers(0, 9)),
    st.tuples(st.just("take_in_order"), st.integers(1, 3)),
    st.tuples(st.just("ack_in_order"), st.integers(0, 2)),
    st.tuples(st.just("change_in_order"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 3, 12, 40])),
    st.tuples(st.just("write"), st.none()),
    st.tuples(st.just("kill"), st.none()),
    st.tuples(st.just("promote"), st.none()),
)
INVISIBLE_MS = 20_000
ORDERED_GROUP = "ordered"


class Model:
    """A broker, and what its client knows."""

    def __init__(self, root, wall):
        self.root = root
        self.wall = wall
        self.number = 0
        self.masters = 0
        self.unacknowledged = set()
        self.acknowledged = set()
        self.held = {}
        """By body, the message that the client holds, and when its time is over."""
        self.first = 0
        """Of the queue that is popped in order: the first message that is not acknowledged."""
        self.given = {}
        """By queue offset, the messages of its last pop that are not acknowledged, and when their time is
        over."""
        self.end_of_pop = 0
        """The queue offset after them."""
        self.was_killed = False
        """Whether the broker was killed since that pop: it may have forgotten what was acknowledged."""
        self.broker = self._start(root / "0")

    def _start(self, folder):
        folder.mkdir(exist_ok=True)
        broker = Popping(folder, self.wall)
        for group in (GROUP, ORDERED_GROUP):
            broker.metadata.groups.find_or_create(group)
        return broker

    async def run(self, steps):
        """Do the steps, then take all that is left."""
        steps = [*steps, ("end_in_order", None), ("wait", 60), *[("take", 32), ("wait", 1)] * 8]
        while steps:
            async with self.broker.running():
                while steps:
                    kind, number = steps.pop(0)
                    if kind in {"kill", "promote"}:
                        break
                    await getattr(self, kind)(number)
            if not steps:
                break
            self.broker.kill()
            self.was_killed = True
            folder = self.root / str(self.masters)
            if kind == "promote":
                # Another node has the log, and the tables as they were copied last.
                self.masters += 1
                other = self.root / str(self.masters)
                shutil.copytree(folder / "commitlog", other / "commitlog")
                if (folder / "config").exists():
                    shutil.copytree(folder / "config", other / "config")
                folder = other
            self.broker = self._start(folder)
        # All that was never acknowledged is held by the client now.
        now_ms = self.wall.now_ms()
        held = {body for body, (_, until_ms) in self.held.items() if until_ms > now_ms}
        assert held == self.unacknowledged, "a message that is not acknowledged does not come again"
        self.broker.kill()

    async def send(self, number):
        for _ in range(number):
            body = b"%d" % self.number
            self.broker.put(body, queue_id=self.number % 2)
            self.unacknowledged.add(body)
            self.number += 1

    async def take(self, number):
        for one in await self.broker.take(messages=number, invisible_ms=INVISIBLE_MS):
            assert one.body not in self.acknowledged, "an acknowledged message comes again"
            self.held[one.body] = one, self.wall.now_ms() + INVISIBLE_MS

    def _held(self, number):
        """A message whose time is not over."""
        now_ms = self.wall.now_ms()
        held = [(body, one) for body, (one, until_ms) in sorted(self.held.items()) if until_ms > now_ms]
        return held[number % len(held)] if held else None

    async def ack(self, number):
        if (found := self._held(number)) is not None:
            body, one = found
            assert (await self.broker.ack(one)).code == 0
            del self.held[body]
            self.unacknowledged.remove(body)
            self.acknowledged.add(body)

    async def change(self, number):
        if (found := self._held(number)) is not None:
            body, one = found
            assert (await self.broker.change(one, 5_000)).code == 0
            self.held[body] = one, self.wall.now_ms() + 5_000

    # -- in order

    async def take_in_order(self, number):
        now_ms = self.wall.now_ms()
        is_blocked = any(until_ms > now_ms for _, until_ms in self.given.values())
        found = await self.broker.take(
            messages=number, invisible_ms=INVISIBLE_MS, group=ORDERED_GROUP, queueId=0, order="true"
        )
        if not found:
            is_over = self.first == self._messages_in_order
            assert is_blocked or is_over or self.was_killed, "an ordered queue gives nothing"
            return
        offsets = [one.handle.queue_offset for one in found]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), "an order has a gap"
        assert offsets[0] <= self.first, "a message is passed over in order"
        if not self.was_killed:
            assert not is_blocked, "messages come before those ahead of them are done"
            assert offsets[0] == self.first, "an acknowledged message comes again in order"
        self.first, self.was_killed = offsets[0], False
        until_ms = self.wall.now_ms() + INVISIBLE_MS
        self.given = {one.handle.queue_offset: (one, until_ms) for one in found}
        self.end_of_pop = offsets[-1] + 1

    @property
    def _messages_in_order(self):
        return (self.number + 1) // 2

    async def ack_in_order(self, number):
        if self.given:
            offset = sorted(self.given)[number % len(self.given)]
            one, _ = self.given.pop(offset)
            assert (await self.broker.ack(one, group=ORDERED_GROUP)).code == 0
            self.first = min(self.given, default=self.end_of_pop)

    async def change_in_order(self, number):
        if self.given:
            offset = sorted(self.given)[number % len(self.given)]
            one, _ = self.given[offset]
            assert (await self.broker.change(one, 5_000, group=ORDERED_GROUP)).code == 0
            # The queue is free when the time of all is over.
            self.given[offset] = one, self.wall.now_ms() + 5_000

    async def end_in_order(self, _):
        """Take and acknowledge all that is left."""
        while self.first < self._messages_in_order:
            await trio.sleep(INVISIBLE_MS / 1000 + 1)
            await self.take_in_order(32)
            assert self.given, "a message is lost in order"
            while self.given:
                await self.ack_in_order(0)

    async def wait(self, seconds):
        await trio.sleep(seconds)

    async def write(self, _):
        self.broker.write_tables()


@pytest.mark.sized
@settings(max_examples=by_level(12, 60, 400))
@given(steps=st.lists(STEP, max_size=20))
def test_nothing_acknowledged_comes_again_and_nothing_else_is_lost(steps, tmp_path_factory):
    async def play():
        wall = WallClock()
        root = tmp_path_factory.mktemp("pops")
        await Model(root, wall).run(steps)
        shutil.rmtree(root)

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
