"""The process of a node: its log, its signals, its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from traceback import extract_tb
from typing import Final

import structlog
import trio

from trioha.broker.health import Health
from trioha.config.broker import LogFormat
from trioha.config.loading import LoadedConfig, load_config
from trioha.config.update import ConfigFile
from trioha.errors import TriohaError, leaves_of
from trioha.net.busy_poll import busy_polling
from trioha.net.descriptors import raise_descriptor_limit
from trioha.net.error_boundary import is_shortage
from trioha.node.allocator import give_back_large_blocks
from trioha.node.logs import configure_logs
from trioha.node.node import Ready, run_node
from trioha.node.service_manager import ServiceManager
from trioha.outside_text import escaped

log = structlog.get_logger(__name__)

EXIT_FAULT: Final = 1
"""Exit code after a fault of the program itself, or where the system had no memory left."""


def run_process(config: Path | None, settings: tuple[str, ...] = (), *, with_namesrv: bool = False) -> int:
    """Run the node of a broker.conf until SIGTERM or SIGINT, and return the exit code of the process.

    Without `config` all settings are of the environment and `settings`, which replace those of a file;
    `with_namesrv` runs a name server in the node, too. Raises TriohaError.
    """
    overrides = (*settings, "trioha.withNamesrv=true") if with_namesrv else settings
    file = None if config is None else ConfigFile(config, overrides)
    loaded = load_config(config, overrides)
    configure_logs(as_json=loaded.config.log_format is LogFormat.JSON)
    for warning in loaded.warnings:
        log.warning(warning)
    raise_descriptor_limit()
    give_back_large_blocks()
    try:
        return trio.run(_run, loaded, file)
    except Exception as error:
        faults = [leaf for leaf in leaves_of(error) if not isinstance(leaf, TriohaError)]
        if not faults:
            raise
        return _report_faults(error, faults)


async def _run(loaded: LoadedConfig, file: ConfigFile | None) -> int:
    """Run the node until a signal stops it; returns exit code 0."""
    stopping, health = trio.Event(), Health()
    manager = ServiceManager(os.environ)
    polling = busy_polling(loaded.config.busy_poll / 1e6)
    with polling, trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            stop = _Stop(stopping, nursery.cancel_scope, manager)
            nursery.start_soon(stop.on_signals, signals)
            nursery.start_soon(manager.run, health.summary)
            await run_node(
                loaded.config,
                on_ready=stop.on_ready,
                warnings=loaded.warnings,
                config_file=file,
                stopping=stopping,
                health=health,
            )
            nursery.cancel_scope.cancel()
    return 0


class _Stop:
    """Handles signals: the first one drains a node that is ready and ends a start, the next one cancels."""

    def __init__(self, stopping: trio.Event, scope: trio.CancelScope, manager: ServiceManager) -> None:
        self._stopping = stopping
        self._scope = scope
        self._manager = manager
        self._is_ready = False

    def on_ready(self, ready: Ready) -> None:
        self._is_ready = True
        print(escaped(ready.line()), flush=True)
        ready.log()
        self._manager.ready()

    async def on_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            name = signal.Signals(number).name
            self._manager.stopping()
            if self._is_ready and not self._stopping.is_set():
                log.info("stopping", signal=name)
                self._stopping.set()
            else:
                log.info("stopping at once", signal=name)
                self._scope.cancel()


def _report_faults(error: Exception, faults: list[BaseException]) -> int:
    """Report what ended the node in the last line, after the traceback of a bug."""
    first = faults[0]
    if is_shortage(first) or any(is_shortage(cause) for cause in _causes(first)):
        text = f"the system has no more memory, threads or files for this node ({_described(first)})"
    else:
        log.error("the node ended by a fault of this program", exc_info=error)
        text = f"the node ended by a fault of this program: {_described(first)}"
    print(f"trioha: {escaped(text)}", file=sys.stderr)
    return EXIT_FAULT


def _causes(error: BaseException) -> list[BaseException]:
    """The chain of causes and contexts of `error`."""
    found = []
    while (cause := error.__cause__ or error.__context__) is not None:
        found.append(cause)
        error = cause
    return found


def _described(error: BaseException) -> str:
    """Type, first line and place of an exception."""
    frames = extract_tb(error.__traceback__)
    text = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
    return f"{text} at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else text
