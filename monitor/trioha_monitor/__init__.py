"""The live monitor: a Textual application that shows replication through the nodes' public remoting port.

Theory of operation. A source makes one frozen `view.ClusterView` after the other: `live` asks running nodes,
a replay folds recorded sessions. `guest` runs the source's trio as a guest of Textual's asyncio loop. `app`
hands each view to `screen`, which shows it in the pane that is in sight (`panes`); widgets hold nothing that
is not in the view or the user's choice, so whoever makes views (live nodes, a recording, a test) drives the
same screens. `source` says how the screens steer a replay and a recording.
"""

from __future__ import annotations

__all__ = ["run_monitor", "run_replay"]

from collections.abc import Sequence
from pathlib import Path


def run_monitor(
    addresses: Sequence[str],
    *,
    name_servers: Sequence[str] = (),
    interval_s: float = 0.1,
    record_into: Path = Path(),
) -> int:
    """Show nodes until the user quits; returns the exit code.

    Nodes are those at `addresses` and all that the `name_servers` list (`host:port` each). `interval_s` is
    the pause between two questions to one node; recordings go into folders in `record_into`. Must be called
    from the main thread, on a terminal, with no event loop running. Raises `MonitorError` if the monitor
    itself failed.
    """
    from trioha_monitor.app import run  # noqa: PLC0415 - Textual is loaded only when a screen opens

    return run(addresses, name_servers=name_servers, interval_s=interval_s, record_into=record_into)


def run_replay(sessions: Sequence[Path]) -> int:
    """Show recorded sessions again, of nodes or of a monitor, until the user quits; returns the exit code.

    As `run_monitor`; raises StoreError for a path that is no session, or one that cannot be read.
    """
    from trioha_monitor.app import run_again  # noqa: PLC0415 - as above

    return run_again(sessions)
