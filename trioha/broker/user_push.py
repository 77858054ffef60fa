"""Users and access control lists for a running broker, trioha's or RocketMQ's, by its own requests.

A user that is there gets password, type and status; an entry takes the place of one with the same resource.
What only the broker has stays.
"""

from __future__ import annotations

from attrs import frozen

from trioha.auth.bodies import acl_json, body_of, user_json
from trioha.auth.model import User
from trioha.auth.tables import AuthTables
from trioha.errors import PeerError
from trioha.remoting.client import RemotingClient
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand, request

TIMEOUT_S = 5.0
IS_THERE = "The user is existed"


@frozen
class Pushed:
    """What was sent."""

    users_made: int
    users_changed: int
    acls: int


async def push(client: RemotingClient, tables: AuthTables) -> Pushed:
    """Send all users, then all lists. Raises PeerError at the first that is refused."""
    made = changed = 0
    for user in tables.in_order.users.values():
        answer = await client.request(_about(RequestCode.AUTH_CREATE_USER, user), timeout_s=TIMEOUT_S)
        if answer.code == ResponseCode.NO_PERMISSION and answer.remark == IS_THERE:
            answer = await client.request(_about(RequestCode.AUTH_UPDATE_USER, user), timeout_s=TIMEOUT_S)
            changed += 1
        else:
            made += 1
        _check(client, answer, f"user {user.name}")
    for acl in tables.in_order.acls.values():
        asked = request(
            RequestCode.AUTH_CREATE_ACL, ext_fields={"subject": acl.subject}, body=body_of(acl_json(acl))
        )
        _check(client, await client.request(asked, timeout_s=TIMEOUT_S), f"list of {acl.subject}")
    return Pushed(made, changed, len(tables.acls))


def _about(code: RequestCode, user: User) -> RemotingCommand:
    return request(code, ext_fields={"username": user.name}, body=body_of(user_json(user)))


def _check(client: RemotingClient, answer: RemotingCommand, what: str) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise PeerError(
            f"{what[:100]}: {response_code_name(answer.code)} ({answer.code}): {(answer.remark or '')[:200]}",
            address=client.address,
            code=answer.code,
        )
