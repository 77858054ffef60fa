"""`trioha group`: consumer groups of a cluster, trioha's or RocketMQ's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cyclopts import App

from trioha.cli import COMMANDS
from trioha.cli.clients import NO_CLUSTER_OPTIONS, ClusterOptions
from trioha.cli.console import out, print_json
from trioha.cli.consume import parse_start
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.cli.tables import Column, number, table, text
from trioha.client.administration import RESET_TO_END, Administration, GroupQueue, GroupSummary
from trioha.client.cluster import Cluster
from trioha.client.consumer import Start
from trioha.remoting.route import MessageQueue
from trioha.times import time_text

group: Final = App(name="group", help=COMMANDS["group"])

_GROUPS: Final[Sequence[Column[GroupSummary]]] = (
    text("group", lambda row: row.group),
    number("members", lambda row: row.members),
    number("lag", lambda row: row.lag),
    text("topics", lambda row: ", ".join(row.topics)),
)
_QUEUES: Final[Sequence[Column[GroupQueue]]] = (
    text("topic", lambda row: row.queue.topic),
    text("broker", lambda row: row.queue.broker_name),
    number("queue", lambda row: row.queue.queue_id),
    number("committed", lambda row: row.committed_offset),
    number("end", lambda row: row.max_offset),
    number("lag", lambda row: row.lag),
    text("last consumed", lambda row: time_text(row.last_consumed_ms) if row.last_consumed_ms else None),
)


@group.command(name="list")
def list_groups(
    *,
    all: bool = False,  # noqa: A002 (the option's name)
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """List consumer groups, with connected members, topics and lag.

    Parameters
    ----------
    all
        Also the groups that every broker has.
    json
        Print one JSON object.
    """

    async def ask(client: Cluster) -> tuple[GroupSummary, ...]:
        return await Administration(client).groups()

    rows = [row for row in cluster.read(security).run(ask) if all or not row.is_system]
    if json:
        listed = [
            {
                "group": row.group,
                "members": row.members,
                "lag": row.lag,
                "topics": list(row.topics),
                "isSystem": row.is_system,
            }
            for row in rows
        ]
        print_json({"groups": listed})
    else:
        out().print(table("Consumer groups", _GROUPS, rows))
    return 0


@group.command(name="status")
def show_status(
    name: str,
    /,
    *,
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Show how far a group is in each queue in which it has offsets.

    Parameters
    ----------
    name
        The group.
    json
        Print one JSON object.
    """

    async def ask(client: Cluster) -> tuple[GroupQueue, ...]:
        return await Administration(client).group_queues(name)

    rows = cluster.read(security).run(ask)
    if json:
        listed = [
            {
                **_queue_json(row.queue),
                "consumerOffset": row.committed_offset,
                "brokerOffset": row.max_offset,
                "lag": row.lag,
                "lastTimestamp": row.last_consumed_ms or None,
            }
            for row in rows
        ]
        print_json({"group": name, "queues": listed})
    else:
        out().print(table(f"Offsets of {name}", _QUEUES, rows))
    return 0


@group.command
def reset(
    name: str,
    topic: str,
    /,
    *,
    to: str,
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Let a group continue at the first or last messages of a topic, or at those of a time.

    Connected members go on there at once; messages that they have received and not acknowledged are
    forgotten. Without any the offsets are committed.

    Parameters
    ----------
    name
        The group.
    topic
        The topic.
    to
        first, last, or a time.
    json
        Print one JSON object.
    """
    start = parse_start(to, key="--to")
    timestamp_ms = {Start.FIRST: 0, Start.LAST: RESET_TO_END}.get(start.start, start.timestamp_ms)

    async def change(client: Cluster) -> Mapping[MessageQueue, int]:
        return await Administration(client).reset(name, topic, timestamp_ms=timestamp_ms)

    offsets = cluster.read(security).run(change)
    if json:
        listed = [{**_queue_json(queue), "offset": offset} for queue, offset in offsets.items()]
        print_json({"group": name, "queues": listed})
    else:
        for queue, offset in offsets.items():
            out().print(f"{name}: {queue} continues at {offset:,}")
    return 0


def _queue_json(queue: MessageQueue) -> dict[str, object]:
    return {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id}
