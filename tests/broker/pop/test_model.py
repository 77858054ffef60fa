"""Random pops, acknowledgements, changes, expiries and masters that are killed, beside a small model.

What is acknowledged, with an answer, never comes again; what is not acknowledged comes again.
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
    st.tuples(st.just("wait"), st.sampled_from([0.5, 3, 12, 40])),
    st.tuples(st.just("write"), st.none()),
    st.tuples(st.just("kill"), st.none()),
    st.tuples(st.just("promote"), st.none()),
)
INVISIBLE_MS = 20_000


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
        self.broker = self._start(root / "0")

    def _start(self, folder):
        folder.mkdir(exist_ok=True)
        broker = Popping(folder, self.wall)
        broker.metadata.groups.find_or_create(GROUP)
        return broker

    async def run(self, steps):
        """Do the steps, then take all that is left."""
        steps = [*steps, ("wait", 60), *[("take", 32), ("wait", 1)] * 8]
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
