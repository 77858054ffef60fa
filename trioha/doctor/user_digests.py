"""Users and access control lists of a broker as the doctor compares them: digests, never secrets.

The key of the digests is new in each process, so that one that is printed or kept says nothing.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from trioha.auth.stored import encode_value, values_of
from trioha.auth.tables import AuthTables

_KEY: Final = os.urandom(32)


@frozen
class UserDigests:
    """Digests of users and of lists, by `alice` and `User:alice`."""

    users: Mapping[str, str]
    acls: Mapping[str, str]

    def differing(self, other: UserDigests) -> list[str]:
        """Names whose user or list is not the same in both, in order."""
        mine, theirs = {**self.users, **self.acls}, {**other.users, **other.acls}
        return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


def digests_of(tables: AuthTables) -> UserDigests:
    """Of all users and lists."""
    users, acls = (
        {name: hmac.new(_KEY, encode_value(value), "sha256").hexdigest() for name, value in values.items()}
        for values in values_of(tables)
    )
    return UserDigests(users, acls)
