"""`trioha namesrv`: run a name server."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Annotated, Final

import structlog
import trio
from cyclopts import Parameter

from trioha.config.broker import LogFormat
from trioha.errors import ConfigError
from trioha.namesrv.server import NameServer
from trioha.namesrv.server_tls import tls_of
from trioha.namesrv.settings import LoadedSettings, load_settings
from trioha.net.descriptors import DescriptorGate, descriptor_limit, open_descriptors, raise_descriptor_limit
from trioha.net.tls import ServerTls
from trioha.node.logs import configure_logs
from trioha.outside_text import escaped
from trioha.remoting.address import Address

log = structlog.get_logger(__name__)

RESERVE_DESCRIPTORS: Final = 32
"""Not used by connections: for files, listeners, and descriptors that the system opens."""


def namesrv(
    *,
    port: int | None = None,
    config: Annotated[Path | None, Parameter(name=["--config", "-c"])] = None,
    set_: Annotated[tuple[str, ...], Parameter(name=["--set", "-p"], negative=())] = (),
    log_format: LogFormat = LogFormat.CONSOLE,
) -> int:
    """Run a name server until SIGTERM or SIGINT.

    When the server is ready, it prints one line on stdout that starts with `ready` and has its address and
    the file of its key-value table. Log lines go to stderr. A signal stops it: it answers the requests in
    flight, for 3 s at most; a second signal ends it at once.

    Parameters
    ----------
    port
        Port to listen on; 9876 by default, 0 for any free one.
    config
        A RocketMQ namesrv.conf.
    set_
        A setting `key=value` that replaces the file's; may be given several times.
    log_format
        How log lines are written.
    """
    overrides = set_ if port is None else (*set_, f"listenPort={port}")
    loaded = load_settings(config, overrides)
    configure_logs(as_json=log_format is LogFormat.JSON)
    for warning in loaded.warnings:
        log.warning(warning)
    raise_descriptor_limit()
    return trio.run(_run, loaded, tls_of(loaded.settings))


async def _run(loaded: LoadedSettings, tls: ServerTls | None) -> int:
    limit = descriptor_limit()
    used = open_descriptors(limit)
    connections = limit - RESERVE_DESCRIPTORS - (RESERVE_DESCRIPTORS if used is None else used)
    if connections < 1:
        raise ConfigError(
            f"this process may open {limit} files: too few for a name server", hint="raise ulimit -n"
        )
    settings = loaded.settings
    if connections < settings.connections_max:
        log.warning("connections limited by ulimit -n", connections_max=connections)
    server = await NameServer.open(
        settings, connections_max=min(connections, settings.connections_max), tls=tls
    )
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            address: Address = await nursery.start(
                lambda *, task_status: server.run(
                    gate=DescriptorGate(keep=RESERVE_DESCRIPTORS // 2, limit=limit), task_status=task_status
                )
            )
            ready = f"ready listen={address} kv_config={shlex.quote(str(settings.kv_config_path))}"
            print(escaped(ready), flush=True)
            log.info("serving", listen=str(address))
            log.info("stopping", signal=signal.Signals(await anext(signals)).name)
            nursery.start_soon(_drain, server, nursery.cancel_scope)
            async for number in signals:
                log.info("stopping at once", signal=signal.Signals(number).name)
                nursery.cancel_scope.cancel()
    return 0


async def _drain(server: NameServer, scope: trio.CancelScope) -> None:
    await server.drain()
    scope.cancel()
