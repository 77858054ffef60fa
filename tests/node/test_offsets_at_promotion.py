"""Consumer offsets of a slave that becomes master."""

import trio

from tests.node.role_nodes import ASYNC_MASTER, WITHIN_S, pull, put, role_node, slave_of
from trioha.broker.half_messages import TRANSACTION_GROUP
from trioha.broker.pop.records import REVIVE_GROUP
from trioha.metadata.offsets import ConsumerOffsets
from trioha.node.promotion import offsets_beyond, set_back
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

REVIVE = "rmq_sys_REVIVE_LOG_c"
ENDS = {("T", 0): 100, ("T", 1): 0, ("%LMQ%light", 0): 0, **{(REVIVE, number): 100 for number in range(3)}}


def test_offsets_beyond_their_queues_are_set_to_the_ends():
    offsets = ConsumerOffsets()
    for group, topic, queue_id, offset in (
        ("beyond", "T", 0, 105), ("at", "T", 0, 100), ("before", "T", 0, 7), ("first", "T", 1, 0),
        ("beyond", "gone", 3, 5), ("light", "%LMQ%light", 0, 9),
        (TRANSACTION_GROUP, "T", 0, 105),
        *((REVIVE_GROUP, REVIVE, *queue) for queue in ((0, 105), (1, 100), (2, 99), (3, 0), (4, 7))),
    ):  # fmt: skip
        offsets.commit(group, topic, queue_id, offset)
    set_back(offsets, offsets_beyond(offsets, lambda topic, queue_id: ENDS.get((topic, queue_id), 0)))
    assert {key: dict(queues) for key, queues in offsets.items()} == {
        "T@beyond": {0: 100},
        "T@at": {0: 100},
        "T@before": {0: 7},
        "T@first": {1: 0},
        "gone@beyond": {3: 0},
        "%LMQ%light@light": {0: 9},
        # The service of transactions knows what to read then.
        f"T@{TRANSACTION_GROUP}": {0: 105},
        # The last one that was dealt with: the next one has the offset of the queue's end.
        f"{REVIVE}@{REVIVE_GROUP}": {0: 99, 1: 99, 2: 99},
    }
    assert offsets.count == sum(len(queues) for _, queues in offsets.items())
    assert offsets_beyond(offsets, lambda topic, queue_id: ENDS.get((topic, queue_id), 0)) == {}


async def test_a_group_gets_the_messages_that_take_the_place_of_lost_ones(tmp_path):
    """Its offset was copied, the messages before it were not."""
    queue = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
    async with role_node(tmp_path, ASYNC_MASTER) as node:
        async with open_client(node.address) as client:
            assert await put(client, b"first") == "PUT_OK"
            # The first pull makes the group.
            await client.request(pull(0), timeout_s=WITHIN_S)
            commit = request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields={**queue, "commitOffset": "5"})
            assert (await client.request(commit, timeout_s=WITHIN_S)).code == ResponseCode.SUCCESS
        await node.change(slave_of())
        await node.change(ASYNC_MASTER)
        async with open_client(node.address) as client:
            asked = request(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=queue)
            with trio.fail_after(WITHIN_S):
                answer = await client.request(asked, timeout_s=WITHIN_S)
            assert answer.ext_fields["offset"] == "1"
