"""Users, resources, and the entries of access control lists (docs/protocol/acl2.md#where-it-is-stored).

The value of a member is its number in RocketMQ's stores; `wire_name` is its name in requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, TypeVar

from attrs import field, frozen

from trioha.store.topics import RETRY_TOPIC_PREFIX

SUBJECT_PREFIX: Final = "User:"
ANY_NAME: Final = "*"


class _Named(IntEnum):
    @property
    def wire_name(self) -> str:
        """Its name in requests and answers."""
        return self.name.capitalize()


class UserType(_Named):
    """Whether access control lists hold for a user."""

    SUPER = 1
    """May do everything."""
    NORMAL = 2


class UserStatus(_Named):
    """Whether a user may do anything."""

    ENABLE = 1
    DISABLE = 2

    @property
    def wire_name(self) -> str:
        """Its name in requests and answers."""
        return self.name.lower()


class PolicyType(_Named):
    """Which entries are looked at first."""

    CUSTOM = 1
    DEFAULT = 2
    """Only where no entry of the custom policy matches."""


class Decision(_Named):
    """What an entry says."""

    ALLOW = 1
    DENY = 2


class Action(_Named):
    """What a request does with a resource."""

    ALL = 1
    """Of an entry: every action."""
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class ResourceKind(_Named):
    """What a resource is."""

    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class PatternForm(IntEnum):
    """How the name of a pattern is meant."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


N = TypeVar("N", bound=_Named)


def named(kind: type[N], name: object) -> N | None:
    """The member with that name, in any case, as RocketMQ reads it; None for every other value."""
    if not isinstance(name, str):
        return None
    wanted = name.lower()
    return next((member for member in kind if member.wire_name.lower() == wanted), None)


@frozen
class Resource:
    """What a request touches."""

    kind: ResourceKind
    name: str

    @classmethod
    def of_topic(cls, topic: str) -> Resource:
        """A topic; a retry topic stands for its group."""
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return cls(ResourceKind.GROUP, topic.removeprefix(RETRY_TOPIC_PREFIX))
        return cls(ResourceKind.TOPIC, topic)

    @classmethod
    def of_group(cls, group: str) -> Resource:
        """A group of consumers."""
        return cls(ResourceKind.GROUP, group)

    def __str__(self) -> str:
        return f"{self.kind.wire_name}:{self.name}"


@frozen
class ResourcePattern:
    """The resources that an entry is about."""

    kind: ResourceKind
    name: str | None
    """None for any name."""
    form: PatternForm

    @classmethod
    def parse(cls, text: str) -> ResourcePattern | None:
        """The pattern of `*`, `Topic:*`, `Topic:a*` or `Topic:a`; None for any other text."""
        if text == ANY_NAME:
            return cls(ResourceKind.ANY, None, PatternForm.ANY)
        before, _, name = text.partition(":")
        kind = named(ResourceKind, before)
        if kind is None:
            return None
        if name == ANY_NAME:
            return cls(kind, None, PatternForm.ANY)
        if name.endswith(ANY_NAME):
            return cls(kind, name.partition(ANY_NAME)[0], PatternForm.PREFIXED)
        return cls(kind, name, PatternForm.LITERAL)

    @property
    def text(self) -> str:
        """As in requests."""
        if self.kind is ResourceKind.ANY:
            return ANY_NAME
        name = self.name or ""
        if self.form is PatternForm.ANY:
            name = ANY_NAME
        elif self.form is PatternForm.PREFIXED:
            # An empty prefix is `**`: the `*` that RocketMQ writes is another pattern when it is read again.
            name = f"{name or ANY_NAME}{ANY_NAME}"
        return f"{self.kind.wire_name}:{name}"

    def matches(self, resource: Resource) -> bool:
        """Whether `resource` is one of them."""
        if self.kind is ResourceKind.ANY:
            return True
        if self.kind is not resource.kind:
            return False
        if self.form is PatternForm.ANY:
            return True
        if self.form is PatternForm.LITERAL:
            return self.name == resource.name
        return resource.name.startswith(self.name or "")


@frozen
class User:
    """A user."""

    name: str
    password: str = field(repr=False)
    """The secret that requests are signed with; RocketMQ stores and sends it as it is."""
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE


@frozen
class Entry:
    """What a user may or may not do with some resources."""

    pattern: ResourcePattern
    actions: tuple[Action, ...]
    decision: Decision
    source_ips: tuple[str, ...] = ()
    """Addresses and CIDR blocks from which it holds; none: from everywhere."""


@frozen
class Policy:
    """Entries of one type."""

    type: PolicyType
    entries: tuple[Entry, ...]

    def with_entries(self, others: Iterable[Entry]) -> Policy:
        """With these: each takes the place of the first entry with the same resources, or is added."""
        entries = list(self.entries)
        for other in others:
            at = _index_of(entries, other.pattern)
            if at is None:
                entries.append(other)
            else:
                entries[at] = other
        return Policy(self.type, tuple(entries))

    def without(self, pattern: ResourcePattern) -> Policy:
        """Without the first entry for these resources."""
        at = _index_of(self.entries, pattern)
        return self if at is None else Policy(self.type, self.entries[:at] + self.entries[at + 1 :])


def _index_of(entries: Sequence[Entry], pattern: ResourcePattern) -> int | None:
    return next((at for at, entry in enumerate(entries) if entry.pattern == pattern), None)


@frozen
class Acl:
    """The access control list of a user."""

    username: str
    policies: tuple[Policy, ...]

    @property
    def subject(self) -> str:
        """As in requests: `User:alice`."""
        return SUBJECT_PREFIX + self.username

    @property
    def entry_count(self) -> int:
        """Entries of all policies."""
        return sum(len(policy.entries) for policy in self.policies)

    def policy(self, kind: PolicyType) -> Policy | None:
        """The policy of a type."""
        return next((policy for policy in self.policies if policy.type is kind), None)

    def with_policies(self, others: Iterable[Policy]) -> Acl:
        """With the entries of these, which take the places of those with the same resources."""
        policies = list(self.policies)
        for other in others:
            at = next((at for at, mine in enumerate(policies) if mine.type is other.type), None)
            if at is None:
                policies.append(other)
            else:
                policies[at] = policies[at].with_entries(other.entries)
        return Acl(self.username, tuple(policies))

    def without(self, kind: PolicyType, pattern: ResourcePattern) -> Acl:
        """Without the entry for these resources, and without a policy that has no entry then."""
        mine = self.policy(kind)
        if mine is None:
            return self
        left = mine.without(pattern)
        others = tuple(policy for policy in self.policies if policy is not mine)
        return Acl(self.username, (left, *others) if left.entries else others)
