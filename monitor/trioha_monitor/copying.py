"""The table of replicas as text, in the format that `mqadmin haStatus` prints. Pure.

RocketMQ 5 prints one block a master: `#MasterAddr`, its max offset, how many slaves it has and how many are
in sync, then one line a slave under a header. Columns, widths and words are those of `mqadmin`, so that
whatever reads its output reads this; replicas that are not connected are left out, as there. What a master
does not tell is `-`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trioha_monitor.view import ClusterView, ReplicaView

UNKNOWN = "-"
HEADER = (
    f"{'#SlaveAddr':<32}  {'#SlaveAckOffset':<16} {'#Diff':>16} {'#TransferSpeed(KB/s)':>16} "
    f"{'#Status':>16} {'#TransferFromWhere':>16}"
)


def ha_status_text(view: ClusterView, replicas: Sequence[ReplicaView]) -> str:
    """`replicas` of `view`, master by master, in their order."""
    masters = list(dict.fromkeys(replica.master for replica in replicas))
    return "".join(_block(view, master, [r for r in replicas if r.master == master]) for master in masters)


def _block(view: ClusterView, master: str, replicas: Sequence[ReplicaView]) -> str:
    node = view.node(master)
    listed = [replica for replica in replicas if replica.is_connected]
    max_offset = node.log.max_offset if node is not None else None
    in_sync = node.in_sync_replicas if node is not None else None
    lines = [
        "",
        f"#MasterAddr\t{master}",
        f"#MasterCommitLogMaxOffset\t{_number(max_offset)}",
        f"#SlaveNum\t{len(listed)}",
        f"#InSyncSlaveNum\t{_number(in_sync)}",
        HEADER,
    ]
    lines += [_line(replica) for replica in listed]
    return "\n".join(lines) + "\n"


def _line(replica: ReplicaView) -> str:
    speed = replica.transferred_bytes_per_s
    status = {True: "OK", False: "Fall Behind", None: UNKNOWN}[replica.in_sync]
    return (
        f"{replica.address:<32}  {_number(replica.ack_offset):<16} {_number(replica.diff_bytes):>16} "
        f"{UNKNOWN if speed is None else format(speed / 1024, '.2f'):>16} {status:>16} "
        f"{_number(replica.sent_offset):>16}"
    )


def _number(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)
