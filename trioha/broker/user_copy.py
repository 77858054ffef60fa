"""A slave's copy of its master's users and access control lists, which RocketMQ's slaves do not have.

Both lists are asked for in each copy of the metadata (3005 and 3010), and replace the slave's own together
where they differ: they have no version. Of a request that is refused nothing follows. A master without any
user is not followed either: its slave would lock everybody out, or admit everybody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from trioha.auth.bodies import tables_of_answers
from trioha.auth.tables import AuthTables
from trioha.broker.auth_store import AuthStore
from trioha.errors import RemoteProtocolError
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import BadRequestError

log = structlog.get_logger(__name__)


class UserCopy:
    """Keeps a slave's users those of its master."""

    def __init__(self, store: AuthStore, *, has_acls: bool) -> None:
        """`has_acls`: lists are copied, too."""
        self._store = store
        self._has_acls = has_acls
        self.changes = 0
        """Copies that changed something."""

    @property
    def entries(self) -> int:
        """Users of this node."""
        return len(self._store.tables.users)

    async def copy(self, ask: Callable[[RequestCode], Awaitable[bytes]]) -> None:
        """One copy; `ask` gives the body of an answer of code 0. Raises PeerError, RemoteProtocolError."""
        users = await ask(RequestCode.AUTH_LIST_USER)
        acls = await ask(RequestCode.AUTH_LIST_ACL) if self._has_acls else b""
        theirs = tables_of_answers(users, acls)
        if not theirs.users:
            raise RemoteProtocolError("the master has no users: those of this node stay")
        if not self._has_acls:
            theirs = AuthTables(theirs.users, self._store.tables.acls)
        if theirs == self._store.tables:
            return
        try:
            await self._store.change(lambda _: theirs)
        except BadRequestError as error:
            raise RemoteProtocolError(error.reason) from error
        self.changes += 1
        log.info("users are copied from the master", users=len(theirs.users), acls=len(theirs.acls))
