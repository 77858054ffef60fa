"""Which entry decides: the order of entries against a naive reading of the rules, and cases by hand."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.auth.strategies import acls_of, actions, entries, resources
from trioha.auth.decisions import DENIED, NO_MATCH, rank, refusal
from trioha.auth.model import (
    Acl,
    Action,
    Decision,
    Entry,
    PatternForm,
    Policy,
    PolicyType,
    Resource,
    ResourceKind,
    ResourcePattern,
)
from trioha.auth.source_ips import is_source

HOSTS = st.sampled_from(("192.0.2.1", "192.0.2.2", "198.51.100.7", "2001:db8::1", "::ffff:192.0.2.1"))


def entry(resource, *names, decision=Decision.ALLOW, sources=()):
    pattern = ResourcePattern.parse(resource)
    assert pattern is not None
    return Entry(pattern, tuple(names) or (Action.PUB,), decision, sources)


def custom(*found):
    return Acl("alice", (Policy(PolicyType.CUSTOM, found),))


def asked(acl, name, *names, kind=ResourceKind.TOPIC, host="192.0.2.1"):
    return refusal(acl, Resource(kind, name), frozenset(names or (Action.PUB,)), host)


DENY = Decision.DENY


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ((), NO_MATCH),
        ((entry("Topic:Orders"),), None),
        ((entry("Topic:orders"),), NO_MATCH),
        ((entry("Group:Orders"),), NO_MATCH),
        ((entry("topic:Orders"),), None),
        ((entry("Topic:Ord*"),), None),
        ((entry("Topic:*"),), None),
        ((entry("*"),), None),
        ((entry("Topic:Orders", Action.SUB),), NO_MATCH),
        ((entry("Topic:Orders", Action.ALL),), None),
        ((entry("Topic:Orders", decision=DENY),), DENIED),
        ((entry("Topic:Orders"), entry("Topic:Orders", decision=DENY)), DENIED),
        ((entry("Topic:Orders"), entry("Topic:Ord*", decision=DENY)), None),
        ((entry("Topic:Ord*", decision=DENY), entry("Topic:Order*")), None),
        ((entry("Topic:*", decision=DENY), entry("Topic:O*")), None),
        ((entry("*", decision=DENY), entry("Topic:*")), None),
        ((entry("Topic:*", decision=DENY), entry("*")), DENIED),
        ((entry("Topic:Orders", sources=("192.0.2.0/24",)),), None),
        ((entry("Topic:Orders", sources=("192.0.2.1",)),), None),
        ((entry("Topic:Orders", sources=("198.51.100.0/24", "2001:db8::/32")),), NO_MATCH),
        ((entry("Topic:Orders"), entry("Topic:Orders", decision=DENY, sources=("198.51.100.9",))), None),
    ],
)
def test_the_first_entry_by_rank_that_matches_decides(found, reason):
    assert asked(custom(*found), "Orders") == reason
    assert asked(custom(*reversed(found)), "Orders") == reason


def test_without_a_list_the_answer_is_no():
    assert asked(None, "Orders") == NO_MATCH


def test_the_default_policy_counts_where_no_entry_of_the_custom_policy_matches():
    default = Policy(PolicyType.DEFAULT, (entry("Topic:*"), entry("Topic:Secret", decision=DENY)))
    own = Policy(PolicyType.CUSTOM, (entry("Topic:Orders", decision=DENY), entry("Topic:Secret")))
    for acl in (Acl("alice", (default, own)), Acl("alice", (own, default))):
        assert asked(acl, "Orders") == DENIED
        assert asked(acl, "Secret") is None
        assert asked(acl, "Other") is None
        assert asked(acl, "Other", Action.SUB) == NO_MATCH


def test_one_of_the_actions_is_enough():
    acl = custom(entry("Topic:Orders", Action.GET))
    assert asked(acl, "Orders", Action.SUB, Action.GET) is None
    assert asked(acl, "Orders", Action.SUB) == NO_MATCH


def test_topics_that_hold_messages_of_all_others_need_an_entry_of_their_name():
    topic = "SCHEDULE_TOPIC_XXXX"
    assert asked(custom(entry("*"), entry("Topic:*"), entry("Topic:SCHEDULE*")), topic) == NO_MATCH
    assert asked(custom(entry(f"Topic:{topic}")), topic) is None
    # The name of a group is not the name of a topic.
    assert asked(custom(entry("*")), topic, kind=ResourceKind.GROUP) is None


def naive_is_before(one, other):
    """Whether an entry comes before another by the rules as they are written."""
    mine, theirs = one.pattern, other.pattern
    if mine.kind is not theirs.kind:
        return theirs.kind is ResourceKind.ANY
    order = [PatternForm.LITERAL, PatternForm.PREFIXED, PatternForm.ANY]
    if mine.form is not theirs.form:
        return order.index(mine.form) < order.index(theirs.form)
    if mine.form is PatternForm.PREFIXED and len(mine.name) != len(theirs.name):
        return len(mine.name) > len(theirs.name)
    return one.decision is DENY and other.decision is Decision.ALLOW


@given(st.lists(entries, min_size=1, max_size=6), resources)
def test_the_order_of_entries_is_the_written_one(found, resource):
    # Entries that match one resource are of its kind, or of any.
    matching = [entry for entry in found if entry.pattern.matches(resource)]
    for one in matching:
        for other in matching:
            assert (rank(one) < rank(other)) == naive_is_before(one, other)


@given(acls_of("alice"), resources, st.frozensets(actions, min_size=1, max_size=2), HOSTS)
def test_decisions_are_those_of_the_first_matching_entry_of_the_first_policy(acl, resource, wanted, host):
    said = refusal(acl, resource, wanted, host)
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        policy = acl.policy(kind)
        matching = [
            each
            for each in (policy.entries if policy else ())
            if each.pattern.matches(resource)
            and (Action.ALL in each.actions or wanted & set(each.actions))
            and refusal(
                custom(Entry(each.pattern, (Action.ALL,), Decision.ALLOW, each.source_ips)),
                resource,
                wanted,
                host,
            )
            is None
        ]
        if matching:
            first = next(
                one for one in matching if not any(naive_is_before(other, one) for other in matching)
            )
            assert said == (DENIED if first.decision is DENY else None)
            return
    assert said == NO_MATCH


@example("**")
@given(st.text(max_size=12))
def test_a_text_of_a_resource_is_read_as_it_is_written(text):
    pattern = ResourcePattern.parse(f"Topic:{text}")
    assert pattern is not None
    again = ResourcePattern.parse(pattern.text)
    assert again == pattern


@pytest.mark.parametrize("text", ["", "Orders", "Top:Orders", ":Orders", "**"])
def test_a_text_without_a_kind_is_no_resource(text):
    assert ResourcePattern.parse(text) is None


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("192.0.2.1", True),
        ("192.0.2.7/24", True),
        ("::1", True),
        ("2001:db8::/32", True),
        ("192.0.2.1/33", False),
        ("192.0.2.1/255.255.255.0", False),
        ("192.0.2.*", False),
        ("example.org", False),
        ("", False),
        ("fe80::1%eth0", False),
        ("1" * 100, False),
    ],
)
def test_sources_are_addresses_and_blocks(text, is_one):
    assert is_source(text) == is_one
