"""Users and access control lists on disk: a file of ours, and the values of RocketMQ's stores.

See docs/protocol/acl2.md#where-it-is-stored. A value is JSON with numbers for kinds. The file has those of
both stores:

    {"version":1,"users":{"alice":{...}},"acls":{"User:alice":{...}}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, TypeVar

from trioha.auth.bodies import username_of
from trioha.auth.model import (
    Acl,
    Action,
    Decision,
    Entry,
    PatternForm,
    Policy,
    PolicyType,
    ResourceKind,
    ResourcePattern,
    User,
    UserStatus,
    UserType,
)
from trioha.auth.source_ips import is_source
from trioha.auth.tables import AuthTables

FILE_NAME: Final = "triohaAuth.json"
"""In the folder `config` of a store."""
VERSION: Final = 1
_USER: Final = 1
"""The only subjectType."""

E = TypeVar("E", bound=IntEnum)


def encode_file(tables: AuthTables) -> bytes:
    """The content of the file."""
    users, acls = values_of(tables)
    value = {"version": VERSION, "users": users, "acls": acls}
    return json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")


def decode_file(data: bytes) -> AuthTables:
    """The tables of a file. Raises ValueError, without a secret in it."""
    value = _json(data, "the file")
    if value.get("version") != VERSION:
        raise ValueError(f"the file is not of version {VERSION}")
    return tables_of(_members(value, "users"), _members(value, "acls"))


def values_of(tables: AuthTables) -> tuple[dict[str, object], dict[str, object]]:
    """The values of RocketMQ's stores `users` and `acls` by key."""
    ordered = tables.in_order
    return (
        {name: _user_value(user) for name, user in ordered.users.items()},
        {acl.subject: _acl_value(acl) for acl in ordered.acls.values()},
    )


def tables_of(users: Mapping[str, object], acls: Mapping[str, object]) -> AuthTables:
    """The tables of the values of both stores. Raises ValueError, without a secret in it."""
    found = {name: _user(name, value) for name, value in users.items()}
    lists = {}
    for subject, value in acls.items():
        username = username_of(subject)
        if username is None:
            raise ValueError("an access control list is of no user")
        if username in found:
            lists[username] = _acl(username, value)
    return AuthTables(found, lists)


def encode_value(value: object) -> bytes:
    """A value as RocketMQ stores it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def decode_value(data: bytes) -> object:
    """A value of RocketMQ's stores. Raises ValueError, without a secret in it."""
    return _json(data, "a value")


def _user_value(user: User) -> dict[str, object]:
    return {
        "password": user.password,
        "subjectType": _USER,
        "userStatus": user.status.value,
        "userType": user.type.value,
        "username": user.name,
    }


def _user(name: str, value: object) -> User:
    members = _object(value, "a user")
    password = members.get("password")
    if not name or not isinstance(password, str):
        raise ValueError("a user has no name or no password")
    return User(
        name,
        password,
        _member(UserType, members, "userType", default=UserType.NORMAL),
        _member(UserStatus, members, "userStatus", default=UserStatus.ENABLE),
    )


def _acl_value(acl: Acl) -> dict[str, object]:
    policies = [
        {"entries": [_entry_value(entry) for entry in policy.entries], "policyType": policy.type.value}
        for policy in acl.policies
    ]
    return {"policies": policies, "subject": {"subjectType": _USER, "username": acl.username}}


def _entry_value(entry: Entry) -> dict[str, object]:
    pattern = entry.pattern
    resource: dict[str, object] = {} if pattern.name is None else {"resourceName": pattern.name}
    resource |= {"resourcePattern": pattern.form.value, "resourceType": pattern.kind.value}
    return {
        "actions": [action.value for action in entry.actions],
        "decision": entry.decision.value,
        "environment": {"sourceIps": list(entry.source_ips)} if entry.source_ips else {},
        "resource": resource,
    }


def _acl(username: str, value: object) -> Acl:
    policies = [
        Policy(
            _member(PolicyType, policy, "policyType", default=PolicyType.CUSTOM),
            tuple(_entry(entry) for entry in _list(policy, "entries")),
        )
        for policy in _list(_object(value, "an access control list"), "policies")
    ]
    return Acl(username, tuple(policies))


def _entry(value: Mapping[str, object]) -> Entry:
    resource = _object(value.get("resource"), "a resource")
    name = resource.get("resourceName")
    if name is not None and not isinstance(name, str):
        raise ValueError("the name of a resource is not a text")
    sources = _object(value.get("environment") or {}, "an environment").get("sourceIps") or []
    if not isinstance(sources, list) or not all(isinstance(one, str) and is_source(one) for one in sources):
        raise ValueError("the addresses of an entry are not addresses")
    return Entry(
        ResourcePattern(
            _member(ResourceKind, resource, "resourceType"),
            name,
            _member(PatternForm, resource, "resourcePattern"),
        ),
        tuple(_of_number(Action, number, "action") for number in _items(value, "actions")),
        _member(Decision, value, "decision"),
        tuple(sources),
    )


def _json(data: bytes, what: str) -> dict[str, object]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        # Its text may have a part of a password.
        raise ValueError(f"{what} is not JSON") from None
    return _object(value, what)


def _object(value: object, what: str) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"{what} is not an object")


def _members(value: Mapping[str, object], name: str) -> dict[str, object]:
    return _object(value.get(name), name)


def _list(value: Mapping[str, object], name: str) -> Iterable[dict[str, object]]:
    return [_object(each, name) for each in _items(value, name)]


def _items(value: Mapping[str, object], name: str) -> list[object]:
    values = value.get(name)
    if isinstance(values, list):
        return values
    raise ValueError(f"{name} is not a list")


def _member(kind: type[E], value: Mapping[str, object], name: str, *, default: E | None = None) -> E:
    number = value.get(name)
    if number is None and default is not None:
        return default
    return _of_number(kind, number, name)


def _of_number(kind: type[E], number: object, name: str) -> E:
    """Raises ValueError for a number without a meaning."""
    if type(number) is not int:
        raise ValueError(f"{name} is not a number")
    try:
        return kind(number)
    except ValueError:
        raise ValueError(f"{name} {number} is not known") from None
