"""Who may do what at the ports of a node: TLS, access control, and the account of the node itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from trioha.broker.security_files import name_server_tls, server_tls
from trioha.config.broker import BrokerConfig
from trioha.net.threads import run_in_thread
from trioha.net.tls import ServerTls
from trioha.remoting.client import ClientSecurity
from trioha.remoting.signature import Credentials

if TYPE_CHECKING:
    from trioha.broker.acl import AccessControl
    from trioha.broker.acl_file import AclFile
    from trioha.broker.acl_resources import TopicAt


@frozen
class Security:
    """The parts that admit requests."""

    tls: ServerTls | None
    """Of the ports for clients; None without TLS."""
    acl: AclFile | None
    """None without aclEnable."""
    client: ClientSecurity
    """Of the node's own connections to name servers."""

    @classmethod
    async def open(cls, config: BrokerConfig) -> Security:
        """Read certificates and rules. Raises ConfigError."""
        tls = await run_in_thread(partial(server_tls, config))
        acl = None
        if config.acl_enable:
            from trioha.broker.acl_file import AclFile  # noqa: PLC0415

            assert config.acl_file is not None, "load_config requires it with aclEnable"
            acl = await AclFile.open(config.acl_file)
        client_tls = await run_in_thread(partial(name_server_tls, config))
        return cls(tls, acl, ClientSecurity(_credentials(config), client_tls))

    def access_control(self, *, topic_at: TopicAt) -> AccessControl | None:
        """Access control by the rules as they are at each request; None if it is not enabled."""
        if (file := self.acl) is None:
            return None
        from trioha.broker.acl import AccessControl  # noqa: PLC0415

        return AccessControl(lambda: file.rules, topic_at=topic_at)

    async def run(self) -> None:
        """Keep the rules those of their file, until cancelled."""
        if self.acl is not None:
            await self.acl.run()


def _credentials(config: BrokerConfig) -> Credentials | None:
    if config.access_key is None or config.secret_key is None:
        return None
    return Credentials(config.access_key, config.secret_key)
