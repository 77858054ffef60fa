"""The live monitor: a Textual application that shows replication through the nodes' public remoting port.

Theory of operation. A source makes one frozen `view.ClusterView` after the other: `live` from the answers
of running nodes, `replay` from recordings; both make rows of replicas by `replica_view` and
`trioha.replica_verdict`. `guest` runs the source's trio as a guest of Textual's asyncio loop. `app` passes
each view to `screen`, which shows it in the visible pane (`panes`). Widgets keep only what the user chose, so
that live nodes, recordings and tests drive the same screens. `playback` is how screens steer a replay.

The live side: `live` asks nodes and name servers; `watched` makes views of these `observations`; `answers`
checks what nodes answer; `cluster` keeps the state of `node`s and their `replicas`; `matching` finds which
connection and which slave belong to which row. `answer_recording` records the observations as `answer_lines`
in an `answer_file`, of which a replay makes the same views.
"""

from __future__ import annotations

__all__ = ["MonitorConfig", "read_config", "run_monitor", "run_replay"]

from collections.abc import Sequence
from pathlib import Path

from trioha.remoting.client import NO_SECURITY, ClientSecurity
from trioha_monitor.config import DEFAULT_THRESHOLDS, MonitorConfig, Thresholds, read_config


def run_monitor(
    addresses: Sequence[str],
    *,
    name_servers: Sequence[str] = (),
    interval_s: float = 0.1,
    record_into: Path = Path(),
    security: ClientSecurity = NO_SECURITY,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
) -> int:
    """Show nodes until the user quits; returns the exit code.

    Nodes are those at `addresses` and all that the `name_servers` list (`host:port` each). `interval_s` is
    the pause between two requests to one node; recordings go into folders in `record_into`. With `security`
    requests are signed and encrypted; `thresholds` are those of the screens. Call it from the main thread, on
    a terminal, without a running event loop. Raises `MonitorError` if the monitor itself failed.
    """
    from trioha_monitor.app import run  # noqa: PLC0415 - Textual is loaded only when a screen opens

    return run(
        addresses,
        name_servers=name_servers,
        interval_s=interval_s,
        record_into=record_into,
        security=security,
        thresholds=thresholds,
    )


def run_replay(sessions: Sequence[Path], *, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> int:
    """Replay sessions of nodes, or a monitor's recording, until the user quits; returns the exit code.

    As `run_monitor`; raises StoreError for a path without a recording, and for one that cannot be read.
    """
    from trioha_monitor.app import run_again  # noqa: PLC0415 - as above

    return run_again(sessions, thresholds=thresholds)
