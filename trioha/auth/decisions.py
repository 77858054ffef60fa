"""Which entry of an access control list decides about a request (docs/protocol/acl2.md#decisions).

Entries match by resource, action and address; those of the default policy are looked at where no entry of the
custom policy matches. Of several the first one counts, in this order: of a kind of resource before of any
kind; a name before a prefix before any name; a longer prefix before a shorter one; deny before allow. Without
a match the answer is no.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trioha.auth.model import Acl, Action, Decision, Entry, PatternForm, PolicyType, Resource, ResourceKind
from trioha.auth.source_ips import comes_from
from trioha.store.topics import HOLDING_TOPICS

NO_MATCH: Final = "no matched policies."
DENIED: Final = "the decision is deny."
_FORMS: Final = (PatternForm.LITERAL, PatternForm.PREFIXED, PatternForm.ANY)


def refusal(acl: Acl | None, resource: Resource, actions: frozenset[Action], host: str) -> str | None:
    """Why a user with this list may not do any of `actions` from `host`; None if the user may.

    Stricter than RocketMQ: the topics that hold messages of all others are for users whose list names them.
    """
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        policy = None if acl is None else acl.policy(kind)
        found = () if policy is None else tuple(_matching(policy.entries, resource, actions, host))
        if found:
            first = min(found, key=rank)
            return DENIED if first.decision is Decision.DENY else None
    return NO_MATCH


def rank(entry: Entry) -> tuple[bool, int, int, bool]:
    """Of several entries that match, the one with the least rank decides."""
    pattern = entry.pattern
    prefix = len(pattern.name or "") if pattern.form is PatternForm.PREFIXED else 0
    return (
        pattern.kind is ResourceKind.ANY,
        _FORMS.index(pattern.form),
        -prefix,
        entry.decision is Decision.ALLOW,
    )


def _matching(
    entries: tuple[Entry, ...], resource: Resource, actions: frozenset[Action], host: str
) -> Iterator[Entry]:
    needs_name = resource.kind is ResourceKind.TOPIC and resource.name in HOLDING_TOPICS
    for entry in entries:
        if needs_name and entry.pattern.form is not PatternForm.LITERAL:
            continue
        if (
            entry.pattern.matches(resource)
            and (Action.ALL in entry.actions or not actions.isdisjoint(entry.actions))
            and comes_from(host, entry.source_ips)
        ):
            yield entry
