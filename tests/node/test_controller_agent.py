"""What a node does of its own when the controllers make it master."""

from functools import partial
from types import SimpleNamespace

import pytest
import trio
from attrs import evolve

from tests.node.role_nodes import WITHIN_S, put, role_node
from tests.ports import free_port
from tests.store.support import message, open_store
from trioha.config.broker import BrokerRole
from trioha.controller.role import Role
from trioha.metadata.registration import parse_registration
from trioha.metadata.topics import TopicConfig, TopicSettings, TopicTable
from trioha.node.controller_agent import node_role
from trioha.node.promotion import adopt_topics, stored_topics
from trioha.node.roles import WAITING
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request, response_to
from trioha.remoting.server import Peer, RemotingServer
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.epochs import EpochLog

NOWHERE = "127.0.0.1:9"
"""Where nothing listens."""


def test_a_new_master_has_every_topic_of_its_log():
    # As many as a producer asks for, though the broker would allow more.
    topics = TopicTable(evolve(TopicSettings(), default_queue_nums=8))
    topics.put(TopicConfig("known", read_queue_nums=2, write_queue_nums=2))
    stored = {"known": 2, "new": 1, "wide": 12}
    adopt_topics(topics, stored)
    assert {name: topic.write_queue_nums for name, topic in topics.entries.items()} == {
        "known": 2,
        "new": 4,
        "wide": 12,
    }
    assert topics.entries["wide"].is_writable
    changes = topics.changes.offset
    adopt_topics(topics, stored)
    assert topics.changes.offset == changes


def test_only_topics_with_messages_since_the_last_change_of_the_table_are_adopted(tmp_path, monkeypatch):
    """The queues of a deleted topic stay on a slave; light queues are no topics."""
    clock = SimpleNamespace(now_ms=0, time_ns=lambda: clock.now_ms * 1_000_000)
    monkeypatch.setattr("trioha.store.commit_log.time", clock)
    store = open_store(tmp_path)
    for stored_ms, topic, queue_id in (
        (1_000, "deleted", 0), (1_000, "known", 0), (1_999, "deleted", 1), (2_000, "new", 0),
        (2_001, "%LMQ%light", 0), (2_002, "wide", 3), (2_003, "wide", 1),
    ):  # fmt: skip
        clock.now_ms = stored_ms
        store.commit_log.append(message(topic=topic, queue_id=queue_id))
    dispatch_to_end(store.dispatcher, store.commit_log)
    assert stored_topics(store, known={"known"}, since_ms=2_000) == {"new": 1, "wide": 4}
    assert stored_topics(store, known={"known"}, since_ms=0) == {"deleted": 2, "new": 1, "wide": 4}
    store.close()


def role(epoch: int, *, is_master: bool) -> Role:
    return Role(
        is_master=is_master,
        epoch=epoch,
        broker_id=1,
        master_id=1 if is_master else 2,
        master_address=NOWHERE,
        sync_state_set=frozenset((1,) if is_master else (2,)),
        sync_state_set_epoch=epoch,
    )


@pytest.mark.parametrize("is_master", [True, False])
async def test_a_node_waits_for_the_next_role_if_its_log_has_a_later_epoch(tmp_path, *, is_master):
    """A slave's session may receive a later epoch while its life ends for an earlier one."""
    EpochLog.open(tmp_path / "epochFileCheckpoint").append(3, 0)
    settings = {
        "enableControllerMode": "true",
        "controllerAddr": NOWHERE,
        "namesrvAddr": NOWHERE,
        "listenPort": free_port(),
    }
    async with role_node(tmp_path, WAITING, **settings) as node:
        async with open_client(node.address) as client:
            node.roles.set(node_role(role(2, is_master=is_master)))
            with trio.fail_after(WITHIN_S):
                await client.wait_lost()
        status = await node.status()
        assert (status.role, status.broker_id) == (BrokerRole.SLAVE.value, 0)
        node.roles.set(node_role(role(4, is_master=True)))
        await node.until(lambda status: status.role == BrokerRole.SYNC_MASTER.value)
        assert EpochLog.open(tmp_path / "epochFileCheckpoint").last_epoch == 4


class NameServer:
    """Notes the broker id and the state version of each registration."""

    def __init__(self) -> None:
        self.registered: list[tuple[str, int | None]] = []
        self._more = trio.Event()

    def __call__(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        if request.code == RequestCode.REGISTER_BROKER:
            sent = parse_registration(request.body, compressed=False, version=request.version)
            self.registered.append((request.ext_fields["brokerId"], sent.data_version.state_version))
            self._more.set()
            self._more = trio.Event()
        return response_to(request, ResponseCode.SUCCESS)

    async def saw(self, broker_id: str, epoch: int, *, after: int = 0) -> None:
        """Wait until the last registration, of more than `after`, is of that id and state version."""
        with trio.fail_after(WITHIN_S):
            while len(self.registered) <= after or self.registered[-1] != (broker_id, epoch):
                await self._more.wait()


async def test_a_master_registers_with_its_epoch_as_the_state_version_also_after_changes_of_topics(tmp_path):
    """Name servers keep the entry of the later master by it."""
    names = NameServer()
    async with trio.open_nursery() as nursery:
        serve = partial(RemotingServer(names).serve, host="127.0.0.1", port=0)  # type: ignore[arg-type]
        ((host, port),) = await nursery.start(serve)
        settings = {
            "enableControllerMode": "true",
            "controllerAddr": NOWHERE,
            "namesrvAddr": f"{host}:{port}",
            "listenPort": free_port(),
        }
        async with role_node(tmp_path, WAITING, **settings) as node:
            for epoch in (2, 5):
                node.roles.set(node_role(role(epoch, is_master=True)))
                await names.saw("0", epoch)
                before = len(names.registered)
                async with open_client(node.address) as client:
                    assert await put(client, b"makes the topic") == "PUT_OK"
                    topic = {"topic": f"T{epoch}", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
                    made = request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=topic)
                    assert (await client.request(made, timeout_s=WITHIN_S)).code == ResponseCode.SUCCESS
                await names.saw("0", epoch, after=before)
                assert set(names.registered[before:]) == {("0", epoch)}
                node.roles.set(node_role(role(epoch + 1, is_master=False)))
                await names.saw("1", epoch)
        nursery.cancel_scope.cancel()
    # Nothing was registered before the first role.
    assert names.registered[0] == ("0", 2)
