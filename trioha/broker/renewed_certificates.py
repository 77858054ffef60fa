"""Certificates and authorities that are renewed while a node serves.

Theory of operation. As the rules of access control (`trioha.broker.acl_file`): a file that has changed and
was the same in two checks one after the other is read. Files that cannot be used together, as a new
certificate beside the old key, are reported once; the old ones stay in use until the files change again.
Connections that are open go on; the next handshake has the new certificate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog
import trio
from attrs import frozen

from trioha.broker.acl_file import FileIdentity
from trioha.broker.security_files import mutual_tls, name_server_tls, server_tls
from trioha.config.broker import BrokerConfig
from trioha.errors import ConfigError
from trioha.net.threads import run_in_thread
from trioha.net.tls import MutualTls, ServerTls
from trioha.remoting.client import ClientSecurity

log = structlog.get_logger(__name__)

CHECK_INTERVAL_S: Final = 1.0

InThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call; tests replace it."""


@frozen
class Renewal:
    """Files that are used again when they change."""

    what: str
    """In the log: `the certificate for clients`."""
    files: tuple[Path, ...]
    read: Callable[[], Any]
    """Reads them. Blocks. Raises ConfigError."""
    use: Callable[[Any], None]
    """Uses what was read for the next handshakes."""


def renewals(
    config: BrokerConfig, *, clients: ServerTls | None, ha: MutualTls | None, own: ClientSecurity
) -> Iterator[Renewal]:
    """Those of a node: of the ports for clients, of HA, and of its own connections to other servers."""
    if clients is not None:

        def use_for_clients(fresh: ServerTls) -> None:
            clients.context = fresh.context

        files = (config.tls_server_cert_path, config.tls_server_key_path, config.tls_server_trust_cert_path)
        yield Renewal(
            "the certificate for clients", _given(*files), partial(server_tls, config), use_for_clients
        )
    if ha is not None:

        def use_for_ha(fresh: MutualTls) -> None:
            ha.server, ha.client = fresh.server, fresh.client

        files = (config.ha_tls_cert, config.ha_tls_key, config.ha_tls_ca)
        yield Renewal("the certificate for HA", _given(*files), partial(mutual_tls, config), use_for_ha)
    authority = config.tls_client_trust_cert_path
    if own.tls is not None and config.tls_client_auth_server and authority is not None:
        yield Renewal(
            "the authority of servers",
            (authority,),
            partial(name_server_tls, config),
            partial(setattr, own, "tls"),
        )


async def keep_renewed(renewal: Renewal, *, in_thread: InThread | None = None) -> None:
    """Use the files when they have changed, until cancelled."""
    in_thread = in_thread or partial(run_in_thread, abandon_on_cancel=True)
    used = last = await in_thread(partial(_identities, renewal.files))
    while True:
        await trio.sleep(CHECK_INTERVAL_S)
        now = await in_thread(partial(_identities, renewal.files))
        if now == last != used:
            used = now
            try:
                fresh = await in_thread(renewal.read)
            except ConfigError as error:
                log.error(f"{renewal.what} stays as it was: {error}")
            else:
                renewal.use(fresh)
                log.info(f"{renewal.what} was renewed", file=str(renewal.files[0]))
        last = now


def _given(*files: Path | None) -> tuple[Path, ...]:
    return tuple(file for file in files if file is not None)


def _identities(paths: tuple[Path, ...]) -> tuple[FileIdentity, ...]:
    return tuple(map(FileIdentity.of, paths))
