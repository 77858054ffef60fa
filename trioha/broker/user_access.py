"""Users and access control lists of RocketMQ 5 in front of a broker's handlers.

See docs/protocol/acl2.md#checks.

Two checks, each with a switch of its own: who signed the request (authentication), and whether that user may
do it (authorization). Both ask at every request: with the stateful strategies of RocketMQ a change would be
seen after a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from attrs import frozen

from trioha.auth.decisions import refusal
from trioha.auth.model import User, UserStatus, UserType
from trioha.auth.tables import AuthTables, refused
from trioha.broker.request_guard import RequestGuard
from trioha.broker.touched import OPEN_CODES, Around, touches_of
from trioha.remoting.command import RemotingCommand
from trioha.remoting.serving import Peer
from trioha.remoting.signature import ACCESS_KEY, is_signed_with

NO_USER: Final = "username cannot be null."
NO_USER_TO_AUTHORIZE: Final = "Authorization failed. Please verify your access rights and try again."
_NAME_SHOWN_MAX: Final = 100
_RESOURCE_SHOWN_MAX: Final = 300


@frozen
class AccessSettings:
    """Which checks are made."""

    authentication: bool
    """authenticationEnabled."""
    authorization: bool
    """authorizationEnabled."""
    not_authenticated: frozenset[int] = frozenset()
    """Request codes of authenticationWhitelist."""
    not_authorized: frozenset[int] = frozenset()
    """Request codes of authorizationWhitelist."""


class UserAccess(RequestGuard):
    """Checks requests by the tables of users as they are at each request."""

    def __init__(
        self,
        tables: Callable[[], AuthTables],
        settings: AccessSettings,
        around: Around,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._tables = tables
        self._settings = settings
        self._around = around

    def check(self, request: RemotingCommand, peer: Peer) -> None:
        """Return if the request is allowed. Raises BadRequestError with the remark of a real broker."""
        code, settings = request.code, self._settings
        if code in OPEN_CODES:
            return
        name = request.ext_fields.get(ACCESS_KEY, "")
        if settings.authentication and code not in settings.not_authenticated:
            self._authenticate(request, name)
        if settings.authorization and code not in settings.not_authorized:
            self._authorize(request, name, peer.address.host)

    def _authenticate(self, request: RemotingCommand, name: str) -> None:
        if not name:
            raise refused(NO_USER)
        user = self._usable(name, missing="is not found.")
        if not is_signed_with(request, user.password):
            raise refused("check signature failed.")

    def _authorize(self, request: RemotingCommand, name: str, host: str) -> None:
        # All of them first: a body that cannot be read refuses the request whoever sent it.
        touches = tuple(touches_of(request, self._around))
        if not touches:
            return
        if not name:
            raise refused(NO_USER_TO_AUTHORIZE)
        if self._usable(name, missing="not found.").type is UserType.SUPER:
            return
        acl = self._tables().acls.get(name)
        for touch in touches:
            reason = refusal(acl, touch.resource, touch.actions, host)
            if reason is not None:
                shown = str(touch.resource)[:_RESOURCE_SHOWN_MAX]
                raise refused(
                    f"User:{name[:_NAME_SHOWN_MAX]} has no permission to access {shown} from {host}, {reason}"
                )

    def _usable(self, name: str, *, missing: str) -> User:
        user = self._tables().users.get(name)
        if user is None:
            raise refused(f"User:{name[:_NAME_SHOWN_MAX]} {missing}")
        if user.status is UserStatus.DISABLE:
            raise refused(f"User:{name[:_NAME_SHOWN_MAX]} is disabled.")
        return user
