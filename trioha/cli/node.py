"""`trioha node`: run a master or a slave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trioha.node.process import run_process


def node(
    *,
    config: Annotated[Path | None, Parameter(name=["--config", "-c"])] = None,
    set_: Annotated[tuple[str, ...], Parameter(name=["--set", "-p"], negative=())] = (),
    with_namesrv: bool = False,
) -> int:
    """Run one node until SIGTERM or SIGINT.

    When the node is ready, it prints one line on stdout that starts with `ready` and has role, addresses,
    store and max offset. Log lines go to stderr. A signal stops the node: it answers the sends that wait for
    slaves or the disk, for 3 s at most; a second signal ends it at once. A signal during the start ends the
    node within a second, without the ready line: the next start repeats the recovery.

    Parameters
    ----------
    config
        A RocketMQ broker.conf. Each key may be a variable of the environment, too, which replaces the file's
        value: TRIOHA_LISTEN_PORT for listenPort, TRIOHA_METRICS_PORT for trioha.metricsPort.
    set_
        A setting `key=value` that replaces file and environment; may be given several times.
    with_namesrv
        Run a name server in the node, too: at the address of namesrvAddr, 127.0.0.1:9876 by default.
    """
    return run_process(config, set_, with_namesrv=with_namesrv)
