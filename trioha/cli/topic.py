"""`trioha topic`: topics of a cluster, trioha's or RocketMQ's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from cyclopts import App

from trioha.cli import COMMANDS
from trioha.cli.clients import NO_CLUSTER_OPTIONS, ClusterOptions
from trioha.cli.console import out, print_json
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.cli.tables import Column, number, table, text
from trioha.client.administration import Administration, BrokerTopic, Master, QueueRange
from trioha.client.cluster import Cluster
from trioha.errors import ConfigError
from trioha.metadata.topics import QUEUES_PER_TOPIC_MAX, Perm, TopicConfig, is_topic_name
from trioha.times import time_text

topic: Final = App(name="topic", help=COMMANDS["topic"])

Permission = Literal["rw", "r", "w"]
PERMISSIONS: Final = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}

_TOPICS: Final[Sequence[Column[BrokerTopic]]] = (
    text("topic", lambda row: row.topic.name),
    text("broker", lambda row: row.broker_name),
    number("read queues", lambda row: row.topic.read_queue_nums),
    number("write queues", lambda row: row.topic.write_queue_nums),
    text("may", lambda row: permission_text(row.topic.perm)),
)
_QUEUES: Final[Sequence[Column[QueueRange]]] = (
    text("broker", lambda row: row.queue.broker_name),
    number("queue", lambda row: row.queue.queue_id),
    number("first offset", lambda row: row.min_offset),
    number("end", lambda row: row.max_offset),
    number("messages", lambda row: row.max_offset - row.min_offset),
    text("last message", lambda row: time_text(row.last_stored_ms) if row.last_stored_ms else None),
)


def permission_text(perm: int) -> str:
    """What a topic may be used for: r, w, rw, or nothing."""
    return "".join(letter for letter, bit in (("r", Perm.READ), ("w", Perm.WRITE)) if perm & bit)


@topic.command(name="list")
def list_topics(
    *,
    all: bool = False,  # noqa: A002 (the option's name)
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """List the topics of all masters.

    Parameters
    ----------
    all
        Also those that every broker has, and those of groups for retries and dead letters.
    json
        Print one JSON object.
    """

    async def ask(client: Cluster) -> tuple[BrokerTopic, ...]:
        return await Administration(client).topics()

    rows = [row for row in cluster.read(security).run(ask) if all or not row.is_system]
    if json:
        listed = [
            {
                "topic": row.topic.name,
                "brokerName": row.broker_name,
                "readQueueNums": row.topic.read_queue_nums,
                "writeQueueNums": row.topic.write_queue_nums,
                "perm": row.topic.perm,
                "isSystem": row.is_system,
            }
            for row in rows
        ]
        print_json({"topics": listed})
    else:
        out().print(table("Topics", _TOPICS, rows))
    return 0


@topic.command
def create(
    name: str,
    /,
    *,
    queues: int = 8,
    may: Permission = "rw",
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Create a topic at every master, or change its queues and permission.

    Each master has the topic in its file when the command ends. Messages of queues that a change takes away
    stay, and are not received any more.

    Parameters
    ----------
    name
        The topic.
    queues
        Its queues on each master, for reads and writes.
    may
        What clients may do: rw, r or w.
    json
        Print one JSON object.
    """
    _check_name(name)
    if not 1 <= queues <= QUEUES_PER_TOPIC_MAX:
        raise ConfigError(f"{queues} is not from 1 to {QUEUES_PER_TOPIC_MAX}", key="--queues")

    async def put(client: Cluster) -> tuple[Master, ...]:
        return await Administration(client).put_topic(
            TopicConfig(name, queues, queues, int(PERMISSIONS[may]))
        )

    return _report("created", name, cluster.read(security).run(put), json=json)


@topic.command
def delete(
    name: str,
    /,
    *,
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Delete a topic at every master that has it, and at the name servers.

    Its queues and the offsets of groups in them are gone at once. Its messages stay in the log until
    retention deletes them, where they are found by id only.

    Parameters
    ----------
    name
        The topic.
    json
        Print one JSON object.
    """
    _check_name(name)

    async def remove(client: Cluster) -> tuple[Master, ...]:
        return await Administration(client).delete_topic(name)

    return _report("deleted", name, cluster.read(security).run(remove), json=json)


@topic.command(name="status")
def show_status(
    name: str,
    /,
    *,
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Show the queues of a topic: first and last offset, and when the last message was stored.

    Parameters
    ----------
    name
        The topic.
    json
        Print one JSON object.
    """

    async def ask(client: Cluster) -> tuple[QueueRange, ...]:
        return await Administration(client).topic_queues(name)

    rows = cluster.read(security).run(ask)
    if json:
        listed = [
            {
                "brokerName": row.queue.broker_name,
                "queueId": row.queue.queue_id,
                "minOffset": row.min_offset,
                "maxOffset": row.max_offset,
                "lastStoreTimestamp": row.last_stored_ms or None,
            }
            for row in rows
        ]
        print_json({"topic": name, "queues": listed})
    else:
        out().print(table(f"Queues of {name}", _QUEUES, rows))
    return 0


def _check_name(name: str) -> None:
    if not is_topic_name(name):
        raise ConfigError(
            f"{name!r} is not the name of a topic", hint="write letters, digits and %|_-, at most 127"
        )


def _report(done: str, name: str, masters: Sequence[Master], *, json: bool) -> int:
    if json:
        listed = [{"brokerName": master.broker_name, "address": master.address} for master in masters]
        print_json({"topic": name, "done": done, "brokers": listed})
    else:
        for master in masters:
            out().print(f"{name}: {done} at {master.broker_name} ({master.address})")
    return 0
