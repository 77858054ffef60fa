"""Who may do what at the ports of a node: TLS, access control, and the account of the node itself."""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import frozen

from trioha.config.broker import BrokerConfig
from trioha.config.model import ClientAuth, TlsMode
from trioha.net.threads import run_in_thread
from trioha.net.tls import ServerTls, TlsFiles, client_context, server_context
from trioha.remoting.client import ClientSecurity
from trioha.remoting.serving import Handler
from trioha.remoting.signature import Credentials

if TYPE_CHECKING:
    from trioha.broker.acl import AccessControl
    from trioha.broker.acl_file import AclFile
    from trioha.broker.acl_resources import TopicAt

_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


@frozen
class SecurityRoom:
    """The parts that admit requests."""

    tls: ServerTls | None
    """Of the ports for clients; None without TLS."""
    acl: AclFile | None
    """None without aclEnable."""
    client: ClientSecurity
    """Of the node's own connections to name servers."""

    @classmethod
    async def open(cls, config: BrokerConfig) -> SecurityRoom:
        """Read certificates and rules. Raises ConfigError."""
        tls = await run_in_thread(partial(_server_tls, config))
        acl = None
        if config.acl_enable:
            from trioha.broker.acl_file import AclFile  # noqa: PLC0415

            assert config.acl_file is not None, "load_config requires it with aclEnable"
            acl = await AclFile.open(config.acl_file)
        client_tls = await run_in_thread(partial(_client_tls, config))
        return cls(tls, acl, ClientSecurity(_credentials(config), client_tls))

    def access_control(self, handler: Handler, *, topic_at: TopicAt) -> AccessControl | None:
        """Access control in front of `handler`; None if it is not enabled."""
        if self.acl is None:
            return None
        from trioha.broker.acl import AccessControl  # noqa: PLC0415

        control = AccessControl(self.acl.rules, handler, topic_at=topic_at)
        self.acl.on_change = control.replace
        return control

    async def run(self) -> None:
        """Keep the rules those of their file, until cancelled."""
        if self.acl is not None:
            await self.acl.run()


def _server_tls(config: BrokerConfig) -> ServerTls | None:
    certificate, key = config.tls_server_cert_path, config.tls_server_key_path
    if certificate is None or key is None or config.tls_server_mode is TlsMode.DISABLED:
        return None
    files = TlsFiles(
        certificate,
        key,
        config.tls_server_key_password,
        config.tls_server_trust_cert_path if config.tls_server_auth_client else None,
        _VERIFY_MODES[config.tls_server_need_client_auth],
    )
    return ServerTls(server_context(files), is_required=config.tls_server_mode is TlsMode.ENFORCING)


def _client_tls(config: BrokerConfig) -> ssl.SSLContext | None:
    if not config.tls_enable:
        return None
    authority = config.tls_client_trust_cert_path if config.tls_client_auth_server else None
    return client_context(authority, key="tls.client.trustCertPath")


def _credentials(config: BrokerConfig) -> Credentials | None:
    if config.access_key is None or config.secret_key is None:
        return None
    return Credentials(config.access_key, config.secret_key)
