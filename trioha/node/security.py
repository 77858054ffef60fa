"""Who may do what at the ports of a node: TLS, access control, and the account of the node itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio
from attrs import evolve, frozen

from trioha.broker.security_files import mutual_tls, name_server_tls, server_tls
from trioha.config.broker import BrokerConfig
from trioha.net.threads import run_in_thread
from trioha.net.tls import MutualTls, ServerTls
from trioha.remoting.client import ClientSecurity
from trioha.remoting.signature import Credentials

if TYPE_CHECKING:
    from trioha.broker.acl_file import AclFile
    from trioha.broker.auth_store import AuthStore
    from trioha.broker.request_guard import RequestGuard
    from trioha.broker.touched import TopicAt


@frozen
class Security:
    """The parts that admit requests."""

    tls: ServerTls | None
    """Of the ports for clients; None without TLS."""
    acl: AclFile | None
    """None without aclEnable."""
    client: ClientSecurity
    """Of the node's own connections: to name servers, controllers, and its master."""
    ha: MutualTls | None = None
    """Of connections to slaves and to the master; None without TLS."""
    users: AuthStore | None = None
    """None without authenticationMetadataProvider."""

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
        ha = await run_in_thread(partial(mutual_tls, config))
        return cls(tls, acl, ClientSecurity(_credentials(config), client_tls), ha)

    async def with_users(self, config: BrokerConfig) -> Security:
        """With the users of the store, which is locked. Raises StoreError, ConfigError."""
        if config.authentication_metadata_provider is None:
            return self
        from trioha.node.users import open_users  # noqa: PLC0415

        return evolve(self, users=await open_users(config))

    def guard(self, config: BrokerConfig, *, topic_at: TopicAt) -> RequestGuard | None:
        """The check of each request, by rules or users as they are then; None if there is none."""
        checks_users = config.authentication_enabled or config.authorization_enabled
        if self.acl is None and not checks_users:
            return None
        from trioha.broker.touched import Around  # noqa: PLC0415

        around = Around(config.broker_cluster_name, topic_at)
        if (file := self.acl) is not None:
            from trioha.broker.acl import AccessControl  # noqa: PLC0415

            return AccessControl(lambda: file.rules, around)
        from trioha.broker.user_access import AccessSettings, UserAccess  # noqa: PLC0415

        users = self.users
        assert users is not None, "load_config requires a provider with a check"
        settings = AccessSettings(
            authentication=config.authentication_enabled,
            authorization=config.authorization_enabled,
            not_authenticated=frozenset(config.authentication_whitelist),
            not_authorized=frozenset(config.authorization_whitelist),
        )
        return UserAccess(lambda: users.tables, settings, around)

    async def run(self, config: BrokerConfig) -> None:
        """Keep rules and certificates those of their files, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self.acl is not None:
                nursery.start_soon(self.acl.run)
            if self.tls is None and self.ha is None and self.client.tls is None:
                return
            from trioha.broker.renewed_certificates import keep_renewed, renewals  # noqa: PLC0415

            for renewal in renewals(config, clients=self.tls, ha=self.ha, own=self.client):
                nursery.start_soon(keep_renewed, renewal)


def _credentials(config: BrokerConfig) -> Credentials | None:
    if (inner := config.inner_client_credentials) is not None:
        return Credentials(inner.name, inner.secret)
    if config.access_key is None or config.secret_key is None:
        return None
    return Credentials(config.access_key, config.secret_key)
