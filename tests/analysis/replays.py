"""Replays in this process, as Spark's tasks run them."""

from __future__ import annotations

from pathlib import Path

from trioha.recording.aggregate import ConnectionPart
from trioha_analysis.parts import RANGE_RECORDS, NodePart, aggregate_range, join_connection, join_node
from trioha_analysis.replay_result import ReplayResult, plan_replay


def replay_here(*sessions: Path, range_records: int = RANGE_RECORDS) -> ReplayResult:
    """Replay `sessions` without Spark."""
    plan = plan_replay(sessions, range_records=range_records)
    nodes: dict[int, NodePart] = {}
    connections: dict[tuple[int, int], ConnectionPart] = {}
    for work in plan.ranges:
        index = work.session_index
        node, parts = aggregate_range(work)
        nodes[index] = join_node([nodes[index], node]) if index in nodes else node
        for conn, part in parts.items():
            earlier = connections.get((index, conn))
            connections[index, conn] = (
                part if earlier is None else join_connection([earlier, part], plan.grids[index])
            )
    return plan.result(nodes, connections)
