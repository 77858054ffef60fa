"""The live monitor: a Textual application that shows replication through the nodes' public remoting port.

Theory of operation. `feed` asks every node for its status, one trio task and one connection a node.
`model` folds the answers into one frozen `Snapshot`; it knows neither Textual nor trio. `guest` runs the
feed's trio as a guest of Textual's asyncio loop. `app` shows each snapshot; the widgets hold nothing that is
not in it, so whoever publishes snapshots (live nodes, a recording, a test) drives the same screen.
"""

from __future__ import annotations

__all__ = ["run_monitor"]

from collections.abc import Sequence


def run_monitor(addresses: Sequence[str], *, interval_s: float) -> int:
    """Show the nodes at `addresses` (`host:port`) until the user quits; returns the exit code.

    `interval_s` is the pause between two questions to one node. Must be called from the main thread, on a
    terminal, with no event loop running. Raises `MonitorError` if the monitor itself failed.
    """
    from trioha_monitor.app import run  # noqa: PLC0415 - Textual is loaded only when a screen opens

    return run(addresses, interval_s=interval_s)
