"""All users and access control lists of a broker, and what requests change (docs/protocol/acl2.md#requests).

Tables never change: a change makes others, which take the place of the old ones when they are on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from attrs import field, frozen

from trioha.auth.model import (
    Acl,
    Entry,
    Policy,
    PolicyType,
    ResourcePattern,
    User,
    UserStatus,
    UserType,
)
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError

USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 200_000
"""Of all lists."""
TEXT_CHARS_MAX: Final = 1024
"""Of a name, a password, or a resource."""

_T = TypeVar("_T")


def refused(reason: str) -> BadRequestError:
    """A change that RocketMQ refuses as well: with NO_PERMISSION, whatever it lacks."""
    return BadRequestError(reason, code=ResponseCode.NO_PERMISSION)


@frozen
class UserChange:
    """What a request says of a user; None and a blank password say nothing."""

    name: str
    password: str | None = field(default=None, repr=False)
    type: UserType | None = None
    status: UserStatus | None = None


@frozen
class AuthTables:
    """The users by name, and their access control lists."""

    users: Mapping[str, User] = field(factory=dict)
    acls: Mapping[str, Acl] = field(factory=dict)
    """By name of the user."""

    @property
    def in_order(self) -> AuthTables:
        """The same in the order of RocketMQ's stores, that of the names' bytes."""
        return AuthTables(_sorted(self.users), _sorted(self.acls))

    def with_new_user(self, asked: UserChange) -> AuthTables:
        """With one more user. Raises BadRequestError."""
        if not asked.password or not asked.password.strip():
            raise refused("password can not be blank")
        if asked.name in self.users:
            raise refused("The user is existed")
        user = User(
            asked.name,
            asked.password,
            asked.type or UserType.NORMAL,
            asked.status or UserStatus.ENABLE,
        )
        return self._with_user(user)

    def with_changed_user(self, asked: UserChange) -> AuthTables:
        """With what the change says of its user. Raises BadRequestError."""
        known = self.users.get(asked.name)
        if known is None:
            raise refused("The user is not exist")
        password = asked.password if asked.password and asked.password.strip() else known.password
        return self._with_user(
            User(known.name, password, asked.type or known.type, asked.status or known.status)
        )

    def without_user(self, name: str) -> AuthTables:
        """Without a user and the user's list; the same if there is no such user."""
        return AuthTables(_without(self.users, name), _without(self.acls, name))

    def with_acl(self, acl: Acl) -> AuthTables:
        """With the entries of `acl`, which replace those with the same resources. Raises BadRequestError."""
        _check_acl(acl)
        if acl.username not in self.users:
            raise refused(f"The subject of {acl.subject} is not exist.")
        known = self.acls.get(acl.username)
        changed = acl if known is None else known.with_policies(acl.policies)
        if changed.entry_count + sum(other.entry_count for other in self.acls.values()) > ENTRIES_MAX:
            raise refused(f"More than {ENTRIES_MAX} entries of access control lists")
        return AuthTables(self.users, {**self.acls, acl.username: changed})

    def without_acl(
        self, username: str, kind: PolicyType | None, pattern: ResourcePattern | None
    ) -> AuthTables:
        """Without an entry, or with no pattern without the whole list. Raises BadRequestError."""
        known = self.acl_of(username)
        if known is None:
            raise refused("The acl is not exist.")
        left = None if pattern is None else known.without(kind or PolicyType.CUSTOM, pattern)
        if left is None or not left.policies:
            return AuthTables(self.users, _without(self.acls, username))
        return AuthTables(self.users, {**self.acls, username: left})

    def acl_of(self, username: str) -> Acl | None:
        """The list of a user; None without one. Raises BadRequestError if there is no such user."""
        if username not in self.users:
            raise refused("The subject is not exist.")
        return self.acls.get(username)

    def users_with(self, part: str | None) -> tuple[User, ...]:
        """The users whose name has `part` in it, in order."""
        return tuple(user for name, user in _sorted(self.users).items() if not part or part in name)

    def acls_with(self, subject_part: str | None, resource_part: str | None) -> tuple[Acl, ...]:
        """The lists of the subjects with one text in their name, with the entries that have the other in
        their resource; without lists that have no entry then."""
        acls = (acl for acl in _sorted(self.acls).values() if not subject_part or subject_part in acl.subject)
        if resource_part:
            acls = (_about(acl, resource_part) for acl in acls)
        return tuple(acl for acl in acls if acl.policies)

    def _with_user(self, user: User) -> AuthTables:
        if user.name not in self.users and len(self.users) >= USERS_MAX:
            raise refused(f"More than {USERS_MAX} users")
        if max(len(user.name), len(user.password)) > TEXT_CHARS_MAX:
            raise refused(f"A name or password of more than {TEXT_CHARS_MAX} characters")
        return AuthTables({**self.users, user.name: user}, self.acls)


def _about(acl: Acl, resource_part: str) -> Acl:
    """The entries that have the text in their resource."""
    policies = (
        Policy(policy.type, tuple(entry for entry in policy.entries if resource_part in entry.pattern.text))
        for policy in acl.policies
    )
    return Acl(acl.username, tuple(policy for policy in policies if policy.entries))


def _check_acl(acl: Acl) -> None:
    if not acl.policies:
        raise refused("The policies is empty.")
    for policy in acl.policies:
        if not policy.entries:
            raise refused("The policy entries is empty.")
        for entry in policy.entries:
            _check_entry(entry)


def _check_entry(entry: Entry) -> None:
    if len(entry.pattern.name or "") > TEXT_CHARS_MAX:
        raise refused(f"A resource of more than {TEXT_CHARS_MAX} characters")


def _without(table: Mapping[str, _T], name: str) -> Mapping[str, _T]:
    return {other: entry for other, entry in table.items() if other != name} if name in table else table


def _sorted(table: Mapping[str, _T]) -> dict[str, _T]:
    return {name: table[name] for name in sorted(table, key=_bytes_of)}


def _bytes_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
