"""Controller mode of a node: the agent that gets its role from RocketMQ's controllers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from trioha.broker.controller_processor import ControllerProcessor
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.controller.agent import ControllerAgent
from trioha.controller.agent_status import AgentSettings, Offsets
from trioha.controller.identity import IdentityFiles
from trioha.controller.links import ANSWER_BYTES_MAX
from trioha.controller.role import NO_EPOCH, Role
from trioha.net.threads import run_in_thread
from trioha.node.roles import WAITING, NodeRole, Roles
from trioha.remoting.address import Address
from trioha.remoting.client import ClientSecurity, open_client
from trioha.store.epochs import EpochTable
from trioha.store.message_store import MessageStore


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
    files = await run_in_thread(
        partial(
            IdentityFiles.open,
            config.store_path_broker_identity,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
        )
    )
    return ControllerAgent(
        settings,
        files,
        offsets=offsets,
        connect=connect,
        hanging=hanging,
        doubtful_epoch=store.doubtful_epoch,
    )


def agent_settings(config: BrokerConfig, *, listen: Address) -> AgentSettings:
    """What the configuration says for the agent."""
    return AgentSettings(
        controllers=config.controller_addr,
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_address=str(listen),
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
        confirm_offset=min(store.checkpoints.confirm_offset(), max_offset),
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


def known_confirm_offset(store: MessageStore) -> int:
    """The confirm offset of the last term, or of the checkpoint; at most the log's end."""
    checkpoints = store.checkpoints
    confirm_offset = max(checkpoints.confirm_offset(), checkpoints.current.confirm_physical_offset)
    return min(confirm_offset, store.commit_log.max_offset)
