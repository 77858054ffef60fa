"""Users and access control lists in requests and answers 3001 to 3010: JSON with names.

See docs/protocol/acl2.md#requests.

| body | members |
|---|---|
| user | password?, userStatus?, userType?, username? |
| list | policies: policyType?, entries: resource, actions, sourceIps?, decision; subject? |
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from trioha.auth.model import (
    SUBJECT_PREFIX,
    Acl,
    Action,
    Decision,
    Entry,
    Policy,
    PolicyType,
    ResourcePattern,
    User,
    UserStatus,
    UserType,
    named,
)
from trioha.auth.source_ips import is_source
from trioha.auth.tables import ENTRIES_MAX, USERS_MAX, AuthTables, UserChange, refused
from trioha.errors import RemoteProtocolError
from trioha.remoting.command import BadRequestError
from trioha.remoting.fastjson import JsonLimits, parse_json

REQUEST_BYTES_MAX: Final = 1024 * 1024
_REQUEST_LIMITS: Final = JsonLimits(containers_max=20_000, dialect_chars_max=64 * 1024, values_max=200_000)


def username_of(subject: object) -> str | None:
    """The user of a subject `User:alice`; None for another text or value."""
    if not isinstance(subject, str):
        return None
    kind, _, name = subject.partition(":")
    return name if kind.lower() == SUBJECT_PREFIX[:-1].lower() else None


def user_change(name: str, body: bytes | memoryview) -> UserChange:
    """What the body of a request says of the user `name`. Raises BadRequestError."""
    value = _request(body)
    password = value.get("password")
    if password is not None and not isinstance(password, str):
        raise BadRequestError("the password is not a text")
    return UserChange(
        name,
        password,
        named(UserType, value.get("userType")),
        named(UserStatus, value.get("userStatus")),
    )


def acl_of_request(subject: str | None, body: bytes | memoryview) -> Acl:
    """The list of a request; the subject of its body counts before that of its header, as in RocketMQ.

    Raises BadRequestError.
    """
    value = _request(body)
    if not value.get("policies"):
        raise BadRequestError("The body of acl is null")
    username = username_of(value.get("subject"))
    if username is None:
        username = username_of(subject)
    if username is None:
        raise refused("The subject type is null.")
    return _acl(username, value)


def user_json(user: User) -> dict[str, object]:
    """A user in an answer, with the password in clear: so RocketMQ answers, and so slaves get it."""
    return {
        "password": user.password,
        "userStatus": user.status.wire_name,
        "userType": user.type.wire_name,
        "username": user.name,
    }


def acl_json(acl: Acl) -> dict[str, object]:
    """A list in an answer or a request."""
    policies = [
        {"entries": [_entry_json(entry) for entry in policy.entries], "policyType": policy.type.wire_name}
        for policy in acl.policies
    ]
    return {"policies": policies, "subject": acl.subject}


def body_of(value: object) -> bytes:
    """The body of an answer or a request."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def tables_of_answers(users_body: bytes, acls_body: bytes) -> AuthTables:
    """All users and lists of a broker, from its answers to 3005 and 3010 without filters.

    A body that is missing is an empty table. A list of a user that the other answer does not have is left
    out: the user was deleted between both. Raises RemoteProtocolError.
    """
    users = {}
    for value in _objects(users_body, most=USERS_MAX, what="users"):
        user = _whole_user(value)
        users[user.name] = user
    acls = {}
    entries = 0
    for value in _objects(acls_body, most=USERS_MAX, what="access control lists"):
        username = username_of(value.get("subject"))
        if username is None:
            raise RemoteProtocolError("an access control list without a user")
        try:
            acl = _acl(username, value)
        except BadRequestError as error:
            raise RemoteProtocolError(f"an access control list that cannot be used: {error}") from None
        entries += acl.entry_count
        if entries > ENTRIES_MAX:
            raise RemoteProtocolError(f"more than {ENTRIES_MAX} entries of access control lists")
        if username in users:
            acls[username] = acl
    return AuthTables(users, acls)


def _request(body: bytes | memoryview) -> dict[str, object]:
    if len(body) > REQUEST_BYTES_MAX:
        raise BadRequestError(f"a body of {len(body)} bytes; at most {REQUEST_BYTES_MAX} are accepted")
    try:
        value = parse_json(body, limits=_REQUEST_LIMITS)
    except RemoteProtocolError:
        # Its text may have a part of a password.
        raise BadRequestError("the body is not JSON") from None
    if not isinstance(value, dict):
        raise BadRequestError("the body is not an object")
    return value


def _objects(body: bytes, *, most: int, what: str) -> list[dict[str, object]]:
    if not body:
        return []
    try:
        values = parse_json(body)
    except RemoteProtocolError:
        raise RemoteProtocolError(f"the {what} are not JSON") from None
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise RemoteProtocolError(f"the {what} are not a list of objects")
    if len(values) > most:
        raise RemoteProtocolError(f"{len(values)} {what}; at most {most} are accepted")
    return values


def _whole_user(value: dict[str, object]) -> User:
    name, password = value.get("username"), value.get("password")
    kind, status = named(UserType, value.get("userType")), named(UserStatus, value.get("userStatus"))
    if not isinstance(name, str) or not name or not isinstance(password, str) or kind is None:
        raise RemoteProtocolError("a user without name, password or type")
    return User(name, password, kind, status or UserStatus.ENABLE)


def _acl(username: str, value: dict[str, object]) -> Acl:
    policies = []
    for policy in _dicts(value.get("policies"), "policies"):
        entries = tuple(_entry(entry) for entry in _dicts(policy.get("entries"), "entries"))
        if entries:
            kind = named(PolicyType, policy.get("policyType")) or PolicyType.CUSTOM
            policies.append(Policy(kind, entries))
    return Acl(username, tuple(policies))


def _entry(value: dict[str, object]) -> Entry:
    """Raises BadRequestError, with the reasons of RocketMQ."""
    resource = value.get("resource")
    pattern = ResourcePattern.parse(resource) if isinstance(resource, str) else None
    if pattern is None:
        raise refused("The resource is null.")
    names = value.get("actions")
    if not isinstance(names, list):
        raise refused("The actions is empty.")
    actions = tuple(action for name in names if (action := named(Action, name)) is not None)
    if not actions:
        raise refused("The actions is empty.")
    if Action.ANY in actions:
        raise refused("The actions can not be Any.")
    decision = named(Decision, value.get("decision"))
    if decision is None:
        raise refused("The decision is null or illegal.")
    return Entry(pattern, actions, decision, _sources(value.get("sourceIps")))


def _sources(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise refused("The source ip is invalid.")
    for source in value:
        if not isinstance(source, str) or not source.strip():
            raise refused("The source ip is empty.")
        if not is_source(source):
            raise refused("The source ip is invalid.")
    return tuple(value)


def _dicts(value: object, what: str) -> Iterable[dict[str, object]]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequestError(f"the {what} are not a list of objects")
    return value


def _entry_json(entry: Entry) -> dict[str, object]:
    said: dict[str, object] = {
        "actions": [action.wire_name for action in entry.actions],
        "decision": entry.decision.wire_name,
        "resource": entry.pattern.text,
    }
    return {**said, "sourceIps": list(entry.source_ips)} if entry.source_ips else said
