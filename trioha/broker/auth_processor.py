"""Requests 3001 to 3010: users and access control lists (docs/protocol/acl2.md#requests).

| request | fields | body | answer |
|---|---|---|---|
| 3001 AUTH_CREATE_USER, 3002 AUTH_UPDATE_USER | username | a user | |
| 3003 AUTH_DELETE_USER | username | | |
| 3004 AUTH_GET_USER | username | | the user; no body without one |
| 3005 AUTH_LIST_USER | filter? | | users; no body without one |
| 3006 AUTH_CREATE_ACL, 3007 AUTH_UPDATE_ACL | subject | a list | |
| 3008 AUTH_DELETE_ACL | subject, policyType?, resource? | | |
| 3009 AUTH_GET_ACL | subject | | the list; no body without one |
| 3010 AUTH_LIST_ACL | subjectFilter?, resourceFilter? | | lists; no body without one |

A slave answers them as a master does; what is changed there lasts until it copies its master again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioha.auth.bodies import acl_json, acl_of_request, body_of, user_change, user_json, username_of
from trioha.auth.model import PolicyType, ResourcePattern, UserType, named
from trioha.auth.tables import AuthTables, refused
from trioha.broker.auth_store import AuthStore, Change
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.serving import Handler, Peer
from trioha.remoting.signature import ACCESS_KEY

DONE_REMARK: Final = "not set any response code"
"""Of every answer of a real broker, also of those with code 0."""
NO_LISTS: Final = "The authorizationMetadataProvider is not configured."
BY_SUPER_ONLY: Final = "The super user can only be {} by super user"


class AuthProcessor:
    """Handles these requests."""

    def __init__(self, store: AuthStore, *, has_acls: bool) -> None:
        """`has_acls`: authorizationMetadataProvider is set; without it there are users only."""
        self._store = store
        self._has_acls = has_acls

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            RequestCode.AUTH_CREATE_USER: self._create_user,
            RequestCode.AUTH_UPDATE_USER: self._update_user,
            RequestCode.AUTH_DELETE_USER: self._delete_user,
            RequestCode.AUTH_GET_USER: self._get_user,
            RequestCode.AUTH_LIST_USER: self._list_users,
            RequestCode.AUTH_CREATE_ACL: self._put_acl,
            RequestCode.AUTH_UPDATE_ACL: self._put_acl,
            RequestCode.AUTH_DELETE_ACL: self._delete_acl,
            RequestCode.AUTH_GET_ACL: self._get_acl,
            RequestCode.AUTH_LIST_ACL: self._list_acls,
        }

    async def _create_user(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        asked = user_change(_username(request), request.body)
        if asked.type is UserType.SUPER:
            self._check_super(request, "create", code=ResponseCode.SYSTEM_ERROR)
        return await self._change(request, lambda tables: tables.with_new_user(asked))

    async def _update_user(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        asked = user_change(_username(request), request.body)
        if asked.type is UserType.SUPER:
            self._check_super(request, "update", code=ResponseCode.SYSTEM_ERROR)

        def change(tables: AuthTables) -> AuthTables:
            self._check_change_of(tables, asked.name, request)
            return tables.with_changed_user(asked)

        return await self._change(request, change)

    async def _delete_user(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        name = request.ext_fields.get("username", "")
        if not name.strip():
            raise refused("username can not be blank")

        def change(tables: AuthTables) -> AuthTables:
            self._check_change_of(tables, name, request)
            return tables.without_user(name)

        return await self._change(request, change)

    def _get_user(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        name = _username(request)
        user = self._store.tables.users.get(name)
        return _done(request, None if user is None else user_json(user))

    def _list_users(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        users = self._store.tables.users_with(request.ext_fields.get("filter"))
        return _done(request, [user_json(user) for user in users])

    async def _put_acl(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        self._check_has_acls()
        acl = acl_of_request(request.ext_fields.get("subject"), request.body)
        return await self._change(request, lambda tables: tables.with_acl(acl))

    async def _delete_acl(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = request.ext_fields
        username = self._subject(request)
        kind = named(PolicyType, fields.get("policyType"))
        resource = fields.get("resource")
        pattern = None
        if resource and resource.strip():
            pattern = ResourcePattern.parse(resource)
            if pattern is None:
                # RocketMQ would delete the whole list.
                raise refused("The resource is null.")
        return await self._change(request, lambda tables: tables.without_acl(username, kind, pattern))

    def _get_acl(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        acl = self._store.tables.acl_of(self._subject(request))
        return _done(request, None if acl is None else acl_json(acl))

    def _list_acls(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        self._check_has_acls()
        fields = request.ext_fields
        acls = self._store.tables.acls_with(fields.get("subjectFilter"), fields.get("resourceFilter"))
        return _done(request, [acl_json(acl) for acl in acls])

    async def _change(self, request: RemotingCommand, change: Change) -> RemotingCommand:
        await self._store.change(change)
        return _done(request, None)

    def _check_change_of(self, tables: AuthTables, name: str, request: RemotingCommand) -> None:
        user = tables.users.get(name)
        if user is not None and user.type is UserType.SUPER:
            self._check_super(request, "update", code=ResponseCode.NO_PERMISSION)

    def _check_super(self, request: RemotingCommand, what: str, *, code: ResponseCode) -> None:
        """Raises BadRequestError if a request names a user that is no Super user; unsigned ones pass."""
        name = request.ext_fields.get(ACCESS_KEY)
        if not name:
            return
        user = self._store.tables.users.get(name)
        if user is None or user.type is not UserType.SUPER:
            raise BadRequestError(BY_SUPER_ONLY.format(what), code=code)

    def _check_has_acls(self) -> None:
        if not self._has_acls:
            raise BadRequestError(NO_LISTS, code=ResponseCode.SYSTEM_ERROR)

    def _subject(self, request: RemotingCommand) -> str:
        self._check_has_acls()
        username = username_of(request.ext_fields.get("subject"))
        if username is None:
            raise refused("The subject is null.")
        return username


def _username(request: RemotingCommand) -> str:
    name = request.ext_fields.get("username", "")
    if not name:
        raise BadRequestError("The username is blank", code=ResponseCode.INVALID_PARAMETER)
    if not name.strip():
        raise refused("username can not be blank")
    return name


def _done(request: RemotingCommand, value: object) -> RemotingCommand:
    body = body_of(value) if value else b""
    return response_to(request, ResponseCode.SUCCESS, remark=DONE_REMARK, body=body)
