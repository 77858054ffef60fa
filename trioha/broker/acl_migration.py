"""Accounts of RocketMQ 4's plain_acl.yml as users of RocketMQ 5 (migrateAuthFromV1Enabled).

See docs/protocol/acl2.md#migration.

An account becomes a user, an admin a Super user, unless there is a user of its name. Topics and groups of its
lists become entries of the custom policy, the defaults entries of the default policy for any topic or group;
what is denied by default needs none.
Addresses of white lists have no counterpart: such accounts need a signature then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import structlog

from trioha.auth.model import (
    Acl,
    Action,
    Decision,
    Entry,
    PatternForm,
    Policy,
    PolicyType,
    Resource,
    ResourceKind,
    ResourcePattern,
    User,
    UserType,
)
from trioha.auth.tables import AuthTables
from trioha.broker.acl_file import load_acl
from trioha.broker.acl_rules import Account, Permission
from trioha.config.broker import BrokerConfig
from trioha.errors import ConfigError

log = structlog.get_logger(__name__)

ANY_ADDRESS_NOTE: Final = "white lists of addresses are not migrated: their clients need a signature now"
_ACTIONS: Final = {
    Permission.DENY: (Action.ALL,),
    Permission.PUB: (Action.PUB,),
    Permission.SUB: (Action.SUB,),
    Permission.PUB | Permission.SUB: (Action.PUB, Action.SUB),
}


def read_accounts(config: BrokerConfig) -> tuple[Account, ...]:
    """The accounts of rocketmqHome's conf/plain_acl.yml and conf/acl/*.yml. Blocks. Raises ConfigError."""
    assert config.rocketmq_home is not None, "load_config requires it with migrateAuthFromV1Enabled"
    conf = config.rocketmq_home / "conf"
    accounts: dict[str, Account] = {}
    for path in _files(conf):
        rules = load_acl(path)
        if rules.white_addresses:
            log.warning(ANY_ADDRESS_NOTE, file=str(path))
        for name, account in rules.accounts.items():
            accounts.setdefault(name, account)
    if not accounts:
        log.warning("there is no account to migrate", folder=str(conf))
    return tuple(accounts.values())


def with_accounts(accounts: Iterable[Account], tables: AuthTables) -> AuthTables:
    """With a user for each account that has none."""
    users, acls = dict(tables.users), dict(tables.acls)
    for account in accounts:
        name = account.access_key
        if name in users:
            continue
        users[name] = User(name, account.secret_key, UserType.SUPER if account.is_admin else UserType.NORMAL)
        policies = tuple(policy for policy in _policies(account) if policy.entries)
        if policies:
            acls[name] = Acl(name, policies)
        log.info("an account has become a user", user=name)
    return AuthTables(users, acls)


def _policies(account: Account) -> Iterator[Policy]:
    yield Policy(
        PolicyType.CUSTOM,
        tuple(_entry(_named(resource), permission) for resource, permission in account.permissions.items()),
    )
    defaults = {ResourceKind.TOPIC: account.default_topic, ResourceKind.GROUP: account.default_group}
    yield Policy(
        PolicyType.DEFAULT,
        tuple(
            _entry(ResourcePattern(kind, None, PatternForm.ANY), permission)
            for kind, permission in defaults.items()
            if permission
        ),
    )


def _named(resource: Resource) -> ResourcePattern:
    return ResourcePattern(resource.kind, resource.name, PatternForm.LITERAL)


def _entry(pattern: ResourcePattern, permission: Permission) -> Entry:
    decision = Decision.ALLOW if permission else Decision.DENY
    return Entry(pattern, _ACTIONS[permission], decision)


def _files(conf: Path) -> list[Path]:
    """The files of rules that are there. Raises ConfigError."""
    try:
        found = sorted((*conf.joinpath("acl").glob("*.yml"), *conf.joinpath("acl").glob("*.yaml")))
        return [path for path in (conf / "plain_acl.yml", *found) if path.is_file()]
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=conf) from error
