"""Queues are shared equally between the members of a group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.remoting.allocation import allocate, allocate_in_circle, shared_allocation
from trioha.remoting.route import MessageQueue

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(4)]


@given(
    st.sets(st.builds(MessageQueue, st.just("T"), st.sampled_from("ab"), st.integers(0, 40))),
    st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=12),
    st.randoms(),
)
def test_each_queue_has_one_member_and_shares_differ_by_one_at_most(queues, members, random):
    shares = []
    for member in sorted(members):
        shuffled_queues, shuffled_members = list(queues), list(members)
        random.shuffle(shuffled_queues)
        random.shuffle(shuffled_members)
        shares.append(allocate(shuffled_queues, shuffled_members, member=member))
    assert sorted(queue for share in shares for queue in share) == sorted(queues)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("members", "sizes"),
    [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (5, [2, 2, 2, 1, 1]), (9, [1] * 8 + [0])],
)
def test_the_first_members_get_neighbours_and_one_more(members, sizes):
    # The same for RocketMQ's own consumers, which compute it by themselves.
    names = [f"c{number}" for number in range(members)]
    shares = [allocate(QUEUES, names, member=name) for name in names]
    assert [len(share) for share in shares] == sizes
    assert [queue for share in shares for queue in share] == QUEUES


def test_a_client_that_is_not_a_member_has_no_share():
    with pytest.raises(ValueError, match="not in list"):
        allocate(QUEUES, ["c1"], member="c2")


def test_members_are_ordered_as_java_orders_texts():
    # The second is a surrogate pair, D83D DE00, and so below the first.
    members = ["\uff21", "\U0001f600"]
    assert allocate(QUEUES, members, member="\U0001f600") == tuple(QUEUES[:4])


@given(
    st.sets(st.builds(MessageQueue, st.just("T"), st.sampled_from("ab"), st.integers(0, 40))),
    st.sets(st.text(min_size=1, max_size=3), min_size=1, max_size=12),
)
def test_in_a_circle_each_queue_has_one_member_too(queues, members):
    shares = [allocate_in_circle(queues, members, member=member) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


def test_in_a_circle_members_take_turns():
    shares = [allocate_in_circle(QUEUES, ["c1", "c2", "c3"], member=name) for name in ("c1", "c2", "c3")]
    assert shares == [tuple(QUEUES[start::3]) for start in range(3)]


@pytest.mark.parametrize("allocation", [allocate, allocate_in_circle])
@pytest.mark.parametrize("sharers", [1, 2])
def test_shared_queues_are_those_of_a_member_and_of_the_next(allocation, sharers):
    names = ["c1", "c2", "c3", "c4"]
    for index, name in enumerate(names):
        share = shared_allocation(QUEUES, names, member=name, allocation=allocation, sharers=sharers)
        owners = [names[(index + number) % 4] for number in range(sharers + 1)]
        own = [queue for owner in owners for queue in allocation(QUEUES, names, member=owner)]
        assert sorted(share) == sorted(own)


def test_with_more_members_than_queues_each_pops_one():
    names = [f"c{number}" for number in range(10)]
    shares = [shared_allocation(QUEUES, names, member=name, allocation=allocate, sharers=1) for name in names]
    assert shares == [(queue,) for queue in [*QUEUES, *QUEUES[:2]]]
    assert shared_allocation([], names, member="c1", allocation=allocate, sharers=1) == ()
