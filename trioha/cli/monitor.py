"""`trioha monitor`: replication of running nodes, live in the terminal."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Final

from cyclopts import Parameter, validators

from trioha.cli.clients import name_servers_of
from trioha.cli.console import err, is_utf8
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.errors import TriohaError
from trioha.extras import how_to_install
from trioha.remoting.address import parse_address

INTERVAL_S = 0.1
INTERVAL_S_MIN = 0.05
INTERVAL_S_MAX = 60.0
_NEEDED: Final = {"numpy": "NumPy", "textual": "Textual", "trioha_monitor": "Textual"}
"""Of the extra, by what is imported: a package without the monitor has no Textual either."""


def monitor(
    *addresses: Annotated[str, Parameter(name="HOST:PORT", negative=())],
    namesrv: Annotated[tuple[str, ...], Parameter(name="--namesrv", negative=())] = (),
    interval: Annotated[
        float, Parameter(validator=validators.Number(gte=INTERVAL_S_MIN, lte=INTERVAL_S_MAX))
    ] = INTERVAL_S,
    record_dir: Path = Path(),
    config: Path | None = None,
    replay: Annotated[tuple[Path, ...], Parameter(name="--replay", negative=(), consume_multiple=True)] = (),
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Show nodes and their replicas live, or recorded ones.

    Verdicts, offsets, lag, logs and events. Works on trioha nodes and on RocketMQ brokers, over their
    remoting port. q quits, ? explains the screen, r starts and stops a recording.

    Parameters
    ----------
    addresses
        Listen addresses of the nodes. Without them, --namesrv and --replay: the brokers of the name servers
        of NAMESRV_ADDR, or of 127.0.0.1:9876.
    namesrv
        Name servers: shows all brokers that they list, and follows their lists.
    interval
        Pause between two requests to a node, in seconds.
    record_dir
        Folder for recordings; each is a file in it.
    config
        TOML file with a table [monitor]: addresses and namesrv, unless the command line has either, and
        thresholds (docs/monitor.md#configuration).
    replay
        Show recordings instead: sessions of nodes (folders), or what a monitor recorded (one file).
    """
    if replay and (addresses or namesrv):
        raise TriohaError("monitor: --replay shows sessions, not nodes; leave out either of them")
    package = _monitor_package()
    settings = package.MonitorConfig() if config is None else package.read_config(config)
    if not (addresses or namesrv or replay):
        addresses, namesrv = settings.addresses, settings.name_servers
    watched = tuple(str(parse_address(address)) for address in addresses)
    name_servers = name_servers_of(namesrv) if namesrv or not (addresses or replay) else ()
    client_security = security.read()
    # Textual reads the keyboard from stdin and draws on stderr; a redirected stdout asks for text, too.
    for stream, name in ((sys.stdin, "stdin"), (sys.stdout, "stdout"), (sys.stderr, "stderr")):
        if stream is None or not stream.isatty():
            raise TriohaError(f"monitor: {name} is not a terminal; for text or JSON use: trioha status")
    _check_terminal()
    run = (
        partial(package.run_replay, replay, thresholds=settings.thresholds)
        if replay
        else partial(
            package.run_monitor,
            watched,
            name_servers=name_servers,
            interval_s=interval,
            record_into=record_dir,
            security=client_security,
            thresholds=settings.thresholds,
        )
    )
    code: int = run()
    return code


def _check_terminal() -> None:
    """Raises TriohaError if the terminal cannot show the screen, as far as its settings say."""
    if err().is_dumb_terminal:
        raise TriohaError(
            f"monitor: TERM={os.environ.get('TERM')} is a terminal that cannot place its cursor; "
            "set TERM to what it is, as xterm-256color, or use: trioha status"
        )
    if not is_utf8(sys.stderr.encoding):
        raise TriohaError(
            f"monitor: the terminal's encoding is {sys.stderr.encoding}, and the screen needs UTF-8; "
            "set LC_ALL=C.UTF-8 if it can show that, or use: trioha status"
        )


def _monitor_package() -> ModuleType:
    """trioha_monitor, imported by name: it needs Textual and NumPy, which a node does not have."""
    try:
        importlib.import_module("trioha_monitor.app")
        return importlib.import_module("trioha_monitor")
    except ModuleNotFoundError as error:
        missing = _NEEDED.get((error.name or "").partition(".")[0])
        if missing is None:
            raise
        raise TriohaError(f"monitor: {missing} is not installed; {how_to_install('monitor')}") from error
