"""Certificates of the ports for clients that are renewed while a node serves.

Theory of operation. As the rules of access control (`trioha.broker.acl_file`): a file that has changed and
was the same in two checks one after the other is read. Files that cannot be used together, as a new
certificate beside the old key, are reported once; the old ones stay in use until the files change again.
Connections that are open go on; the next handshake has the new certificate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog
import trio

from trioha.broker.acl_file import FileIdentity
from trioha.broker.security_files import server_tls
from trioha.config.broker import BrokerConfig
from trioha.errors import ConfigError
from trioha.net.threads import run_in_thread
from trioha.net.tls import ServerTls

log = structlog.get_logger(__name__)

CHECK_INTERVAL_S: Final = 1.0

InThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call; tests replace it."""


async def keep_renewed(config: BrokerConfig, tls: ServerTls, *, in_thread: InThread | None = None) -> None:
    """Use new certificates of `config` in `tls`, until cancelled."""
    in_thread = in_thread or partial(run_in_thread, abandon_on_cancel=True)
    files = (config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_trust_cert_path)
    paths = tuple(path for path in files if path is not None)
    used = last = await in_thread(partial(_identities, paths))
    while True:
        await trio.sleep(CHECK_INTERVAL_S)
        now = await in_thread(partial(_identities, paths))
        if now == last != used:
            used = now
            try:
                fresh = await in_thread(partial(server_tls, config))
            except ConfigError as error:
                log.error(f"the certificate for clients stays as it was: {error}")
            else:
                assert fresh is not None, "the settings that gave `tls` give TLS"
                tls.context = fresh.context
                log.info("the certificate for clients was renewed", file=str(paths[0]))
        last = now


def _identities(paths: tuple[Path, ...]) -> tuple[FileIdentity, ...]:
    return tuple(map(FileIdentity.of, paths))
