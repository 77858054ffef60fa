"""Users for tests of nodes and brokers: settings that switch them on, their accounts, requests by them."""

from __future__ import annotations

import json
from typing import Any, Final

import trio

from trioha.config.keys.auth import LOCAL_ACLS, LOCAL_USERS
from trioha.remoting.client import ClientSecurity, open_client
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.signature import Credentials, signed

ADMIN: Final = Credentials("admin", "secret-of-admin")
INNER: Final = Credentials("inner", "secret-of-inner")
ALICE: Final = Credentials("alice", "secret-of-alice")
PROVIDERS: Final = {
    "authenticationMetadataProvider": LOCAL_USERS,
    "authorizationMetadataProvider": LOCAL_ACLS,
}
CHECKED: Final = {
    **PROVIDERS,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
    ),
}
"""Settings of a broker that checks everything, trioha's or RocketMQ's."""
STATUS_CODES: Final = "28,907"
"""Of requests for the status, which tests send unsigned: for authenticationWhitelist."""


def asked(address: str, *commands: RemotingCommand, by: Credentials | None = ADMIN) -> list[RemotingCommand]:
    """The answers of a broker to requests, one after the other."""

    async def ask() -> list[RemotingCommand]:
        async with open_client(address, security=ClientSecurity(by)) as client:
            return [await client.request(command, timeout_s=30) for command in commands]

    return trio.run(ask)


def by(user: Credentials, command: RemotingCommand) -> RemotingCommand:
    """The request, signed."""
    return signed(command, user)


def create_user(user: Credentials, kind: str = "Normal") -> RemotingCommand:
    """A request for a new user."""
    body = {"username": user.access_key, "password": user.secret_key, "userType": kind}
    return request(3001, ext_fields={"username": user.access_key}, body=json.dumps(body).encode())


def update_user(user: Credentials, **changes: str) -> RemotingCommand:
    """A request that changes a user."""
    return request(3002, ext_fields={"username": user.access_key}, body=json.dumps(changes).encode())


def put_acl(user: Credentials, *entries: dict[str, Any]) -> RemotingCommand:
    """A request with entries for a user's list: resource, actions, decision, sourceIps."""
    subject = f"User:{user.access_key}"
    body = {"subject": subject, "policies": [{"entries": entries}]}
    return request(3006, ext_fields={"subject": subject}, body=json.dumps(body).encode())


def entry(
    resource: str, *actions: str, decision: str = "Allow", sources: tuple[str, ...] = ()
) -> dict[str, Any]:
    """An entry of a list."""
    said: dict[str, Any] = {"resource": resource, "actions": list(actions), "decision": decision}
    return {**said, "sourceIps": list(sources)} if sources else said


def users_and_lists(address: str) -> tuple[Any, Any]:
    """All users and lists of a broker, as it answers them to an admin; None where there is none."""
    answers = asked(address, request(3005), request(3010))
    assert [answer.code for answer in answers] == [0, 0], answers
    users, lists = (json.loads(bytes(answer.body)) if answer.body else None for answer in answers)
    return users, lists
