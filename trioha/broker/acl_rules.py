"""The rules of access control: plain_acl.yml (docs/protocol/remoting.md#signed-requests).

| key | meaning |
|---|---|
| globalWhiteRemoteAddresses | addresses whose requests need no signature |
| accounts | a list of accounts |
| accessKey, secretKey | name and secret of an account, more than 6 characters each |
| whiteRemoteAddress | addresses from which the account may do everything, without a valid signature |
| admin | whether the account may change topics, groups and the configuration |
| defaultTopicPerm, defaultGroupPerm | permission for topics and groups that are not listed: DENY if missing |
| topicPerms, groupPerms | lists of `name=permission` |

A permission is DENY, PUB, SUB, PUB\\|SUB or SUB\\|PUB. RocketMQ reads any other word as DENY and ignores
unknown keys; here both are refused, since a typing error must not change who may do what.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag
from pathlib import Path
from typing import Final

from attrs import field, frozen

from trioha.auth.model import Resource, ResourceKind
from trioha.broker.address_pattern import NO_ADDRESS, AddressPattern
from trioha.config.yaml_file import YamlFields, YamlNode, parse_yaml
from trioha.errors import ConfigError
from trioha.store.topics import HOLDING_TOPICS

KEY_CHARS_MIN: Final = 7
"""Of accessKey and secretKey: RocketMQ refuses shorter ones."""
ACCOUNTS_MAX: Final = 10_000
PERMISSIONS_MAX: Final = 200_000
"""Entries of topicPerms and groupPerms of all accounts."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"

_FILE_KEYS: Final = frozenset(("globalWhiteRemoteAddresses", "accounts", "dataVersion"))
_ACCOUNT_KEYS: Final = frozenset(
    (
        "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm",
        "topicPerms", "groupPerms",
    )
)  # fmt: skip


class Permission(Flag):
    """What an account may do with a topic, or with the retry topic of a group."""

    DENY = 0
    PUB = 1
    """Send."""
    SUB = 2
    """Receive."""


_PERMISSIONS: Final = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}


@frozen
class Account:
    """An account and its permissions."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    white_addresses: AddressPattern = NO_ADDRESS
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    permissions: Mapping[Resource, Permission] = field(factory=dict)
    """Of the listed topics and groups."""

    def may(self, needed: Permission, resource: Resource) -> bool:
        """Whether the account has the permission `needed` for `resource`.

        An admin without a list may do everything. Defaults do not open the `HOLDING_TOPICS`.
        """
        if self.is_admin and not self.permissions:
            return True
        owned = self.permissions.get(resource)
        if owned is None:
            is_group = resource.kind is ResourceKind.GROUP
            if resource.name in HOLDING_TOPICS and not is_group:
                return False
            owned = self.default_group if is_group else self.default_topic
        return needed in owned


@frozen
class AclRules:
    """The content of one plain_acl.yml."""

    white_addresses: tuple[AddressPattern, ...] = ()
    accounts: Mapping[str, Account] = field(factory=dict)
    """By access key."""


def parse_acl(data: bytes, *, file: Path) -> AclRules:
    """The rules of a file. Raises ConfigError, which never has a secret key in it."""
    document = parse_yaml(data, file=file)
    if document is None:
        raise ConfigError("has no rules", file=file, hint="give globalWhiteRemoteAddresses or accounts")
    fields = YamlFields.of(document, file=file, keys=_FILE_KEYS, what="the file")
    white = tuple(
        _addresses(fields, "globalWhiteRemoteAddresses", item.value or "", line=item.line)
        for item in fields.texts("globalWhiteRemoteAddresses")
    )
    accounts: dict[str, Account] = {}
    listed = 0
    nodes = fields.nodes("accounts")
    if len(nodes) > ACCOUNTS_MAX:
        raise fields.problem("accounts", f"has {len(nodes)} accounts; at most {ACCOUNTS_MAX} are accepted")
    for node in nodes:
        account = _account(node, file)
        if account.access_key in accounts:
            raise ConfigError(
                f"{account.access_key[:60]!r} is given twice", file=file, line=node.line, key="accessKey"
            )
        listed += len(account.permissions)
        if listed > PERMISSIONS_MAX:
            raise fields.problem("accounts", f"has more than {PERMISSIONS_MAX} permissions")
        accounts[account.access_key] = account
    return AclRules(white, accounts)


def _account(node: YamlNode, file: Path) -> Account:
    fields = YamlFields.of(node, file=file, keys=_ACCOUNT_KEYS, what="an account")
    for key in ("accessKey", "secretKey"):
        if len(fields.needed(key)) < KEY_CHARS_MIN:
            raise fields.problem(key, f"has fewer than {KEY_CHARS_MIN} characters")
    permissions: dict[Resource, Permission] = {}
    _read_permissions(fields, "topicPerms", permissions)
    _read_permissions(fields, "groupPerms", permissions)
    return Account(
        fields.needed("accessKey"),
        fields.needed("secretKey"),
        fields.flag("admin"),
        _addresses(fields, "whiteRemoteAddress", fields.text("whiteRemoteAddress") or ""),
        _permission(fields, "defaultTopicPerm", fields.text("defaultTopicPerm") or "DENY"),
        _permission(fields, "defaultGroupPerm", fields.text("defaultGroupPerm") or "DENY"),
        permissions,
    )


def _read_permissions(fields: YamlFields, key: str, permissions: dict[Resource, Permission]) -> None:
    resource_of = Resource.of_topic if key == "topicPerms" else Resource.of_group
    for item in fields.texts(key):
        name, equals, permission = (item.value or "").partition("=")
        if not equals or not name.strip():
            raise fields.problem(
                key, "has an entry that is not name=permission", hint="write topicA=SUB", line=item.line
            )
        permissions[resource_of(name.strip())] = _permission(fields, key, permission, line=item.line)


def _permission(fields: YamlFields, key: str, text: str, *, line: int | None = None) -> Permission:
    found = _PERMISSIONS.get(text.strip())
    if found is None:
        raise fields.problem(
            key,
            f"{text[:40]!r} is not a permission",
            hint=f"give one of {', '.join(_PERMISSIONS)}",
            line=line,
        )
    return found


def _addresses(fields: YamlFields, key: str, text: str, *, line: int | None = None) -> AddressPattern:
    try:
        return AddressPattern.parse(text)
    except ValueError as error:
        raise fields.problem(key, str(error), line=line) from None
