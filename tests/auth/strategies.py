"""Users and access control lists for hypothesis."""

from hypothesis import strategies as st

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
    User,
    UserStatus,
    UserType,
)
from trioha.auth.tables import AuthTables

names = st.text("ab", min_size=1, max_size=4)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda text: bool(text.strip())
)
kinds = st.sampled_from((ResourceKind.CLUSTER, ResourceKind.TOPIC, ResourceKind.GROUP))
patterns = st.one_of(
    st.just(ResourcePattern(ResourceKind.ANY, None, PatternForm.ANY)),
    st.builds(ResourcePattern, kinds, st.none(), st.just(PatternForm.ANY)),
    st.builds(ResourcePattern, kinds, names, st.sampled_from((PatternForm.LITERAL, PatternForm.PREFIXED))),
)
actions = st.sampled_from([action for action in Action if action is not Action.ANY])
sources = st.lists(
    st.sampled_from(
        ("192.0.2.1", "192.0.2.0/24", "0.0.0.0/0", "198.51.100.7", "2001:db8::/32", "2001:db8::1")
    ),
    max_size=2,
).map(tuple)
entries = st.builds(
    Entry,
    patterns,
    st.lists(actions, min_size=1, max_size=3).map(tuple),
    st.sampled_from(Decision),
    sources,
)
policies = st.builds(
    Policy, st.sampled_from(PolicyType), st.lists(entries, min_size=1, max_size=5).map(tuple)
)
resources = st.builds(Resource, kinds, names)
users = st.builds(User, texts, texts, st.sampled_from(UserType), st.sampled_from(UserStatus))


def acls_of(name):
    """Lists of a user."""
    return st.builds(
        Acl,
        st.just(name),
        st.lists(policies, min_size=1, max_size=2, unique_by=lambda policy: policy.type).map(tuple),
    )


@st.composite
def tables(draw):
    """Users, some of them with lists."""
    found = {user.name: user for user in draw(st.lists(users, max_size=4))}
    lists = {name: draw(acls_of(name)) for name in found if draw(st.booleans())}
    return AuthTables(found, lists)
