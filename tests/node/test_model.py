"""A model of queues, groups and offsets beside a node: sends, pulls, commits, restarts and kill -9.

What must hold: a message that was acknowledged is in its queue, at the queue offset of the answer, for ever;
the messages of a queue are in the order of their sends; a message that was sent once is there once at most;
the committed offset of a group is one that it committed, the last one unless the node was killed, and never
beyond what was delivered to it.

Each example is up to 25 steps on a node of its own. `make model N=100` runs more of them.
"""

import os
import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.levels import by_level
from tests.node.wire import Wire, bodies_of, pull_from, send_to
from tests.node_process import TriohaNode
from tests.waiting import wait_until
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.pretty_json import parse_pretty
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import request
from trioha.remoting.send_message import put_status_name

EXAMPLES = int(os.environ.get("TRIOHA_MODEL_EXAMPLES", by_level(2, 2, 60)))

pytestmark = [pytest.mark.process, pytest.mark.sized, pytest.mark.timeout(120 + 60 * EXAMPLES)]

TOPIC = "Model"
QUEUES = 4
GROUPS = ("g1", "g2")
FILE_BYTES = 1 << 20

queue_ids = st.integers(0, QUEUES - 1)
groups = st.sampled_from(GROUPS)
sizes = st.sampled_from((1, 100, 3000, 60_000))


def offset_request(code, group, queue_id, **fields):
    return request(
        code, ext_fields={"consumerGroup": group, "topic": TOPIC, "queueId": str(queue_id), **fields}
    )


class NodeModel(RuleBasedStateMachine):
    """The model, and the node beside it."""

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="trioha-model-"))
        self.node = None
        self.numbers = count()
        self.queues = {queue_id: [] for queue_id in range(QUEUES)}
        """Bodies by queue offset."""
        self.delivered = dict.fromkeys(((group, queue) for group in GROUPS for queue in range(QUEUES)), 0)
        """End of what a group was given."""
        self.commits = {key: [None] for key in self.delivered}
        """Offsets that may be on the disk, the committed one last; None for no offset."""

    @initialize()
    def start(self):
        self.node = TriohaNode(
            self.folder / "store",
            role="ASYNC_MASTER",
            mappedFileSizeCommitLog=FILE_BYTES,
            maxMessageSize=65536,
            flushConsumerOffsetInterval=100,
        )

    def teardown(self):
        if self.node is not None and self.node.is_running:
            self.node.kill()
        shutil.rmtree(self.folder)

    def wire(self):
        return Wire(self.node.listen_address)

    def message(self, queue_id, size):
        number = next(self.numbers)
        body = b"%d-%d-" % (queue_id, number) + b"x" * size
        return body, send_to(TOPIC, body, queues=QUEUES, queue_id=queue_id)

    # -- sends -----------------------------------------------------------------------------------------

    @rule(queue_id=queue_ids, number=st.integers(1, 30), size=sizes)
    def send(self, queue_id, number, size):
        """Several at once over one connection: they are stored in their order."""
        bodies, commands = zip(*(self.message(queue_id, size) for _ in range(number)), strict=True)
        with self.wire() as wire:
            opaques = wire.start(*commands)
            answers = wire.answers(opaques)
        for opaque, body in zip(opaques, bodies, strict=True):
            self.check_stored(answers[opaque], queue_id, body)

    @rule(queue_id=queue_ids, number=st.integers(1, 60), answered=st.integers(0, 60), size=sizes)
    def send_and_kill(self, queue_id, number, answered, size):
        """kill -9 in the middle: what was answered is there, of the rest the first ones may be."""
        bodies, commands = zip(*(self.message(queue_id, size) for _ in range(number)), strict=True)
        with self.wire() as wire:
            opaques = wire.start(*commands)
            answers = wire.answers(opaques[: min(answered, number)])
            self.node.kill()
            answers |= wire.answers(opaques)
        acknowledged = [opaque in answers for opaque in opaques]
        # The last answer that came says that all before it are stored.
        stored = number - acknowledged[::-1].index(True) if True in acknowledged else 0
        for opaque, body in zip(opaques[:stored], bodies[:stored], strict=True):
            if opaque in answers:
                self.check_stored(answers[opaque], queue_id, body)
            else:
                self.queues[queue_id].append(body)
        self.start()
        found = self.read_whole(queue_id)
        known = self.queues[queue_id]
        assert found[: len(known)] == known
        assert found[len(known) :] == list(bodies[stored : stored + len(found) - len(known)])
        self.queues[queue_id] = found
        self.check_offsets_after_kill()

    def check_stored(self, answer, queue_id, body):
        assert put_status_name(answer) == "PUT_OK"
        assert int(answer.ext_fields["queueId"]) == queue_id
        assert int(answer.ext_fields["queueOffset"]) == len(self.queues[queue_id])
        self.queues[queue_id].append(body)

    def read_whole(self, queue_id):
        """Every message of a queue."""
        found = []
        with self.wire() as wire:
            while True:
                answer = wire.ask(pull_from(TOPIC, len(found), queue_id=queue_id))
                if answer.code != ResponseCode.SUCCESS:
                    # A queue without any message has no topic before the first send.
                    assert answer.code == ResponseCode.PULL_NOT_FOUND or not any(self.queues.values()), answer
                    return found
                found += bodies_of(answer)

    # -- pulls and offsets -----------------------------------------------------------------------------

    @rule(group=groups, queue_id=queue_ids, number=st.integers(1, 32), back=st.integers(0, 10))
    def pull(self, group, queue_id, number, back):
        """From where the group is, or before it."""
        offset = max(0, self.delivered[group, queue_id] - back)
        with self.wire() as wire:
            answer = wire.ask(pull_from(TOPIC, offset, queue_id=queue_id, group=group, number=number))
        expected = self.queues[queue_id][offset : offset + number]
        if not expected:
            assert answer.code != ResponseCode.SUCCESS
            return
        assert answer.code == ResponseCode.SUCCESS, answer
        found = bodies_of(answer)
        # One message at least; fewer than wanted where they are large.
        assert found
        assert found == expected[: len(found)]
        end = int(answer.ext_fields["nextBeginOffset"])
        assert end == offset + len(found)
        self.delivered[group, queue_id] = max(self.delivered[group, queue_id], end)

    @precondition(lambda self: any(self.queues.values()))
    @rule(group=groups, queue_id=queue_ids, size=sizes)
    def wait_for_a_message(self, group, queue_id, size):
        """A pull at the end of the queue is answered by the next send."""
        offset = len(self.queues[queue_id])
        body, command = self.message(queue_id, size)
        with self.wire() as waiting, self.wire() as sending:
            opaques = waiting.start(
                pull_from(TOPIC, offset, queue_id=queue_id, group=group, suspend_ms=30_000)
            )
            self.check_stored(sending.ask(command), queue_id, body)
            answer = waiting.answers(opaques)[opaques[0]]
        assert bodies_of(answer) == [body]
        self.delivered[group, queue_id] = offset + 1

    @rule(group=groups, queue_id=queue_ids, part=st.floats(0, 1))
    def commit(self, group, queue_id, part):
        """Any offset up to what was delivered, also one before the last."""
        delivered = self.delivered[group, queue_id]
        if not delivered:
            return
        offset = round(part * delivered)
        with self.wire() as wire:
            # As a consumer does first: what a pull has made the node know of its group, a kill may take back.
            wire.ask(pull_from(TOPIC, 0, queue_id=queue_id, group=group))
            answer = wire.ask(
                offset_request(RequestCode.UPDATE_CONSUMER_OFFSET, group, queue_id, commitOffset=str(offset))
            )
        assert answer.code == ResponseCode.SUCCESS, answer
        self.commits[group, queue_id].append(offset)

    @rule()
    def wait_until_offsets_are_on_disk(self):
        """From then on no kill takes them back."""
        path = self.node.root / "config" / ConsumerOffsets.file_name
        expected = {key: offsets[-1] for key, offsets in self.commits.items() if offsets[-1] is not None}
        if not expected:
            return

        def found():
            offsets = ConsumerOffsets()
            if path.exists():
                offsets.load(parse_pretty(path.read_text()))
            return {(group, queue): offsets.find(group, TOPIC, queue) for group, queue in expected}

        wait_until(lambda: found() == expected, f"{expected} on disk")
        for key, offset in expected.items():
            self.commits[key] = [offset]

    # -- restarts --------------------------------------------------------------------------------------

    @rule()
    def restart(self):
        """A clean stop keeps everything."""
        self.node.stop()
        self.start()
        for key, offsets in self.commits.items():
            self.commits[key] = offsets[-1:]
        for queue_id in range(QUEUES):
            assert self.read_whole(queue_id) == self.queues[queue_id]

    @rule()
    def kill(self):
        """kill -9 of an idle node."""
        self.node.kill()
        self.start()
        for queue_id in range(QUEUES):
            assert self.read_whole(queue_id) == self.queues[queue_id]
        self.check_offsets_after_kill()

    def check_offsets_after_kill(self):
        """Each is one that may have been on the disk; it is the committed one from then on."""
        for key, offsets in self.commits.items():
            found = self.committed(*key)
            assert found in offsets, (key, found, offsets)
            self.commits[key] = [found]

    def committed(self, group, queue_id):
        """The offset that the node has of a group; None if it has none."""
        with self.wire() as wire:
            asked = offset_request(
                RequestCode.QUERY_CONSUMER_OFFSET, group, queue_id, setZeroIfNotFound="false"
            )
            # The field is one of 5.x.
            answer = wire.ask(evolve(asked, version=int(Version.V5_3_3)))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer
        return int(answer.ext_fields["offset"])

    @invariant()
    def committed_offsets_are_those_of_the_groups_and_not_beyond_what_was_delivered(self):
        if self.node is None:
            return
        for (group, queue_id), offsets in self.commits.items():
            found = self.committed(group, queue_id)
            assert found == offsets[-1]
            assert (found or 0) <= self.delivered[group, queue_id]


TestNodeModel = NodeModel.TestCase
TestNodeModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=by_level(8, 16, 25),
    # Each step of a smaller example starts nodes again.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
