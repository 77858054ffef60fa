"""The users of a node: their file, those that the configuration wants, and requests about them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import structlog

from trioha.auth.model import User, UserType
from trioha.auth.tables import AuthTables
from trioha.broker.acl_migration import read_accounts, with_accounts
from trioha.broker.auth_processor import AuthProcessor
from trioha.broker.auth_store import AuthStore, auth_file, with_users
from trioha.config.broker import BrokerConfig
from trioha.net.threads import run_in_thread
from trioha.remoting.serving import Handler

log = structlog.get_logger(__name__)


async def open_users(config: BrokerConfig) -> AuthStore:
    """The users of a locked store. Raises StoreError, ConfigError for accounts that cannot be migrated."""
    accounts = await run_in_thread(partial(read_accounts, config)) if config.migrate_auth_from_v1 else ()

    def first(tables: AuthTables) -> AuthTables:
        return with_accounts(accounts, with_users(_wanted_users(config), tables))

    path = auth_file(config.store_path_root_dir)
    store = await AuthStore.open(path, first)
    if not store.tables.users and (config.authentication_enabled or config.authorization_enabled):
        log.warning(
            "there are no users: every request is refused; give initAuthenticationUser, or run "
            "`trioha auth import`",
            path=str(path),
        )
    return store


def user_handlers(config: BrokerConfig, users: AuthStore) -> Mapping[int, Handler]:
    """Requests about users and access control lists."""
    has_acls = config.authorization_metadata_provider is not None
    return AuthProcessor(users, has_acls=has_acls).handlers


def _wanted_users(config: BrokerConfig) -> list[User]:
    """Super users that the configuration wants to be there."""
    accounts = (config.init_authentication_user, config.inner_client_credentials)
    return [User(each.name, each.secret, UserType.SUPER) for each in accounts if each is not None]
