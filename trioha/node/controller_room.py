"""Controller mode of a node: the agent that gets its role from RocketMQ's controllers."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Final

import structlog
import trio

from trioha.broker.controller_processor import ControllerProcessor
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.controller.agent import AgentSettings, ControllerAgent, Offsets
from trioha.controller.links import ANSWER_BYTES_MAX
from trioha.controller.role import NO_EPOCH, Role
from trioha.errors import StoreError
from trioha.metadata.table import TableFull
from trioha.metadata.topics import TopicConfig, TopicTable, is_topic_name
from trioha.net.threads import run_in_thread
from trioha.node.role_changes import NodeRole, Roles
from trioha.remoting.address import Address
from trioha.remoting.client import ClientSecurity, open_client
from trioha.store.epochs import EpochTable
from trioha.store.message_store import MessageStore
from trioha.store.topics import LMQ_PREFIX
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)


async def open_agent(
    config: BrokerConfig,
    store: MessageStore,
    *,
    listen: Address,
    security: ClientSecurity,
    hanging: Callable[[], str | None],
) -> ControllerAgent:
    """The agent of a node that clients and controllers reach at `listen`; `hanging` says what hangs in it.

    `security` is for its connections to controllers.
    Raises StoreError for an identity on disk that cannot be used.
    """
    settings = agent_settings(config, listen=listen)
    connect = partial(open_client, frame_bytes_max=ANSWER_BYTES_MAX, security=security)
    offsets = partial(offsets_of, store)
    return await run_in_thread(
        lambda: ControllerAgent.open(
            settings,
            offsets=offsets,
            connect=connect,
            hanging=hanging,
            doubtful_epoch=store.doubtful_epoch,
        )
    )


def agent_settings(config: BrokerConfig, *, listen: Address) -> AgentSettings:
    """What the configuration says for the agent."""
    return AgentSettings(
        controllers=config.controller_addr,
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_address=str(listen),
        identity_path=config.store_path_broker_identity,
        metadata_period_s=config.sync_broker_metadata_period / 1000,
        leader_period_s=config.sync_controller_metadata_period / 1000,
        heartbeat_period_s=config.broker_heartbeat_interval / 1000,
        heartbeat_timeout_ms=config.controller_heart_beat_timeout_mills,
        election_priority=config.broker_election_priority,
    )


def offsets_of(store: MessageStore) -> Offsets:
    """What heartbeats say of a store: with it the controllers choose among several candidates."""
    max_offset = store.commit_log.max_offset
    return Offsets(
        epoch=epochs_of(store).last_epoch if store.epochs is not None else NO_EPOCH,
        max_offset=max_offset,
        confirm_offset=min(store.confirm_offset(), max_offset),
    )


def epochs_of(store: MessageStore) -> EpochTable:
    """The epochs of the log as of now."""
    return EpochTable() if store.epochs is None else store.epochs.table


def controller_processor(
    config: BrokerConfig, store: MessageStore, agent: ControllerAgent, *, ha_address: Address
) -> ControllerProcessor:
    """Answers what controllers, their tools and slaves ask a broker of controller mode."""
    return ControllerProcessor(
        agent,
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        epochs=lambda: epochs_of(store),
        max_offset=lambda: store.commit_log.max_offset,
        ha_address=str(ha_address),
    )


PRODUCER_QUEUE_NUMS: Final = 4
"""How many queues a producer asks for when it makes a topic: its default of defaultTopicQueueNums."""
WAITING = NodeRole(BrokerRole.SLAVE, 0)
"""Of a node to which the controllers gave no role since its start: it serves what is stored."""


def node_role(role: Role | None) -> NodeRole:
    """The role of a node for what the controllers decided."""
    if role is None:
        return WAITING
    if role.is_master:
        return NodeRole(BrokerRole.SYNC_MASTER, 0, epoch=role.epoch, control=role)
    return NodeRole(
        BrokerRole.SLAVE,
        role.broker_id,
        master_address=role.master_address,
        epoch=role.epoch,
        control=role,
    )


async def run_agent(
    agent: ControllerAgent, roles: Roles, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Have the node take each role that the controllers give it, until cancelled. Raises StoreError."""
    with agent.changes() as changes:
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            task_status.started()
            async for role in changes:
                roles.set(node_role(role))


def take_epoch(store: MessageStore, role: Role, config: BrokerConfig) -> None:
    """Begin the epoch of a new master at the log's end. Blocks.

    A master that was restarted within its epoch goes on with it. Raises StoreError for a log with a later
    epoch: it is of other controllers.
    """
    epochs = store.epochs
    assert epochs is not None, "a store of controller mode has epochs"
    if epochs.last_epoch > role.epoch:
        raise StoreError(
            f"the log has epoch {epochs.last_epoch}, the controllers are at epoch {role.epoch}",
            path=epochs.path,
            hint="restore the state of the controllers, or remove this store",
        )
    # An epoch may have been adopted before its first bytes came; those of its master never will.
    epochs.truncate_suffix(store.commit_log.max_offset + 1)
    if epochs.last_epoch < role.epoch:
        epochs.append(role.epoch, store.commit_log.max_offset)
    others = role.sync_state_set - {role.broker_id}
    is_limited = config.all_ack_in_sync_state_set and others
    store.limit_dispatch(Watermark(known_confirm_offset(store)) if is_limited else None)


def known_confirm_offset(store: MessageStore) -> int:
    """The confirm offset of the last life, or of the checkpoint; at most the log's end."""
    return min(max(store.confirm_offset(), store.last_confirm_offset), store.commit_log.max_offset)


def stored_topics(store: MessageStore, *, known: Container[str], since_ms: int) -> dict[str, int]:
    """Topics with messages stored at or after `since_ms`, ms since 1970, and how many queues they have.

    Not those of `known`, nor light queues (`%LMQ%...`), which are no topics. Blocks.
    """
    found: dict[str, int] = {}
    for name, queue_id in store.queues.queue_offsets():
        if name in known or name.startswith(LMQ_PREFIX) or not is_topic_name(name):
            continue
        if _last_stored_ms(store, name, queue_id) >= since_ms:
            found[name] = max(found.get(name, 0), queue_id + 1)
    return found


def _last_stored_ms(store: MessageStore, topic: str, queue_id: int) -> float:
    """When the last message of a queue was stored; infinite if that cannot be read, -1 without any."""
    try:
        return store.reads.store_timestamp(topic, queue_id, store.reads.max_offset(topic, queue_id) - 1)
    except StoreError as error:
        log.warning("a queue cannot be read", topic=topic, queue_id=queue_id, reason=str(error))
        return math.inf


def adopt_topics(topics: TopicTable, stored: Mapping[str, int]) -> None:
    """Add the topics that a new master's log has and that its copy of the metadata does not have yet.

    A slave copies metadata in periods: a topic that its master made just before it died would be lost, and
    with it the messages that were acknowledged. It gets as many queues as the log shows, and no fewer than
    producers ask for: with more, messages would go to queues that the next master does not have if that is a
    RocketMQ broker, which makes the topic anew with the producer's number.

    `stored` are the topics with messages since the table's last change (its DataVersion has that time, of the
    master's clock, as records have), and their numbers of queues. A topic whose messages are all older was
    deleted then: its queues stay on a slave until retention.
    """
    for name, stored_queues in stored.items():
        if topics.find(name) is not None:
            continue
        queue_nums = max(stored_queues, min(PRODUCER_QUEUE_NUMS, topics.settings.default_queue_nums))
        try:
            topics.put(TopicConfig(name, read_queue_nums=queue_nums, write_queue_nums=queue_nums))
        except TableFull as full:
            log.error("topics of the log are missing", reason=str(full))
            return
        log.warning("a topic of the log was not copied from the old master", topic=name, queues=queue_nums)
