"""`trioha node`: run a master or a slave."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import structlog
import trio
from cyclopts import Parameter

from trioha.config.broker import LoadedConfig, LogFormat, load_config
from trioha.node.logs import configure_logs
from trioha.node.node import Ready, run_node

log = structlog.get_logger(__name__)


def node(
    *,
    config: Annotated[Path, Parameter(name=["--config", "-c"])],
    set_: Annotated[tuple[str, ...], Parameter(name=["--set", "-p"], negative=())] = (),
) -> int:
    """Run one node until SIGTERM or SIGINT.

    When it serves, one line on stdout starts with `ready` and names role, addresses, store and max offset.
    Log lines go to stderr. A signal during the start ends it, too, within a second and without that line: the
    next start begins its recovery anew.

    Parameters
    ----------
    config
        A RocketMQ broker.conf.
    set_
        A setting `key=value` that replaces the file's; may be given several times.
    """
    loaded = load_config(config, set_)
    configure_logs(as_json=loaded.config.log_format is LogFormat.JSON)
    for warning in loaded.warnings:
        log.warning(warning)
    return trio.run(_run, loaded)


async def _run(loaded: LoadedConfig) -> int:
    """Run the node until a signal comes; 0 is a clean stop."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, signals, nursery.cancel_scope)
            await run_node(loaded.config, on_ready=_say_ready, warnings=loaded.warnings)
    return 0


async def _stop_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for number in signals:
        log.info("stopping", signal=signal.Signals(number).name)
        scope.cancel()


def _say_ready(ready: Ready) -> None:
    print(ready.line(), flush=True)
    log.info(
        "serving", role=ready.role, listen=str(ready.listen), ha=str(ready.ha), max_offset=ready.max_offset
    )
