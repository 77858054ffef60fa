"""Pops that wait: what wakes them, which of them, how long they wait, and how many may."""

import pytest
import trio
import trio.testing

from trioha.broker.pop.polls import (
    ALL_QUEUES,
    EARLY_MS,
    WAIT_S_MAX,
    PollKey,
    PollLimits,
    PopPolls,
    wait_s,
    waiting,
)
from trioha.remoting.command import BadRequestError, request, response_to
from trioha.remoting.serving import WokenAnswers

KEY = PollKey("T", "G", ALL_QUEUES)
ASKED = request(200050)
FOUND, NOTHING = response_to(ASKED, 0), response_to(ASKED, 210)


class Clients:
    """Requests that wait in a book; each notes when it looks, and takes what there is."""

    def __init__(self, polls, nursery):
        self.polls = polls
        self.messages = 0
        """Of the one group, not taken."""
        self.looks = []
        """Names of the requests that looked, in order."""
        self.answers = {}
        """By name: the code, and when it came."""
        self.waiting = {}
        self._woken = WokenAnswers()
        self._names = {}
        nursery.start_soon(self._answer)

    def ask(self, name, key=KEY, *, timeout_s=10.0, connection=1, error=None):
        def look(is_over):
            self.looks.append(name)
            if error is not None:
                raise error
            if self.messages:
                self.messages -= 1
                return FOUND
            return NOTHING if is_over else None

        answer = waiting(self.polls, key, connection, look, timeout_s=timeout_s)
        if answer is not None:
            self._names[answer] = name
            self.waiting[name] = answer
            answer.wait_in(self._woken)
        return answer

    def leave(self, name):
        """The connection of a request ends."""
        answer = self.waiting[name]
        self._names.pop(answer, None)
        answer.abandon()

    async def _answer(self):
        while True:
            for answer in await self._woken.take():
                if answer not in self._names:
                    continue
                name = self._names[answer]
                try:
                    response = answer.answer()
                except BadRequestError as error:
                    response = response_to(ASKED, error.code)
                if response is not None:
                    self.answers[name] = (response.code, trio.current_time())


@pytest.fixture
def make(nursery):
    def build(*, wakes_all=False, **limits):
        polls = PopPolls(PollLimits(**limits), wakes_all=wakes_all)
        nursery.start_soon(polls.run)
        return Clients(polls, nursery)

    return build


@pytest.fixture
def clients(make):
    return make()


async def settled():
    await trio.testing.wait_all_tasks_blocked()


async def test_a_pop_ends_at_its_deadline_with_nothing(clients, autojump_clock):
    clients.ask("a", timeout_s=5)
    clients.ask("b", timeout_s=2)
    await trio.sleep(60)
    assert clients.answers == {"a": (210, 5.0), "b": (210, 2.0)}
    assert clients.looks == ["b", "a"]
    assert clients.polls.open_polls == clients.polls.waiting(KEY) == 0


@pytest.mark.parametrize(
    ("born_ms", "poll_ms", "now_ms", "seconds"),
    [
        (1000, 5000, 1000, 5 - EARLY_MS / 1000),
        (1000, 5000, 2000, 3.95),
        (1000, 0, 1000, 0),
        (1000, -5, 1000, 0),
        (1000, 50, 1000, 0),
        (1000, 2**63, 1000, WAIT_S_MAX),
        (2**62, 5000, 1000, 4.95),
    ],
)
def test_a_pop_waits_until_50_ms_before_its_client_stops_to(born_ms, poll_ms, now_ms, seconds):
    assert wait_s(born_ms=born_ms, poll_ms=poll_ms, now_ms=now_ms) == seconds


@pytest.mark.parametrize(
    ("topic", "queue_id", "is_woken"),
    [
        ("T", 0, True),
        ("T", 7, True),
        ("%RETRY%G_T", 0, True),
        ("%RETRY%G+T", 3, True),
        ("%RETRY%G", 0, False),
        ("%RETRY%H_T", 0, False),
        ("U", 0, False),
    ],
)
async def test_an_arrival_in_the_topic_or_its_retry_topics_wakes_a_pop(
    clients, autojump_clock, topic, queue_id, is_woken
):
    clients.ask("a")
    clients.polls.arrived([("other", 0), (topic, queue_id)])
    await settled()
    assert clients.looks == ["a"] * is_woken
    # Nothing was for it: it waits on, until its old deadline.
    assert clients.answers == {}
    await trio.sleep(20)
    assert clients.answers == {"a": (210, 10.0)}


async def test_a_pop_of_one_queue_is_woken_by_that_one_and_by_any_retry_queue(clients):
    clients.ask("q1", KEY._replace(queue_id=1))
    clients.ask("q2", KEY._replace(queue_id=2))
    clients.ask("all")
    clients.polls.arrived([("T", 2)])
    await settled()
    assert sorted(clients.looks) == ["all", "q2"]
    clients.polls.arrived([("%RETRY%G_T", 0)])
    await settled()
    assert sorted(clients.looks[2:]) == ["all", "q1", "q2"]


async def test_of_each_group_the_pop_with_the_nearest_deadline_is_woken(clients):
    clients.ask("late", timeout_s=20)
    clients.ask("early", timeout_s=10)
    clients.ask("other", KEY._replace(group="H"))
    clients.messages = 2
    clients.polls.arrived([("T", 0), ("T", 1)])
    await settled()
    assert clients.answers.keys() == {"early", "other"}
    assert sorted(clients.looks) == ["early", "other"]


async def test_what_a_pop_has_left_wakes_the_next_one(clients):
    clients.ask("a")
    clients.ask("b")
    clients.messages = 2
    clients.polls.arrived([("T", 0)])
    await settled()
    assert clients.answers.keys() == {"a"}
    clients.polls.has_more("T", "G", 0)
    await settled()
    assert clients.answers.keys() == {"a", "b"}


async def test_a_queue_that_is_free_again_wakes_pops_of_it_and_of_all_queues(clients):
    for name, queue_id in (("q1", 1), ("q2", 2), ("all", ALL_QUEUES)):
        clients.ask(name, KEY._replace(queue_id=queue_id))
    clients.polls.has_more("T", "G", 1)
    await settled()
    assert sorted(clients.looks) == ["all", "q1"]
    clients.polls.has_more("T", "G", ALL_QUEUES)
    await settled()
    assert sorted(clients.looks) == ["all", "all", "q1"]


async def test_notifications_are_all_woken(make):
    clients = make(wakes_all=True)
    for name in "abc":
        clients.ask(name)
    clients.polls.arrived([("T", 0)])
    await settled()
    assert sorted(clients.looks) == ["a", "b", "c"]


async def test_a_wake_of_a_connection_that_ends_before_it_looks_goes_to_the_next_pop(clients):
    clients.ask("gone")
    clients.ask("next")
    clients.messages = 1
    clients.polls.arrived([("T", 0)])
    clients.leave("gone")
    await settled()
    assert "next" in clients.answers


async def test_a_pop_whose_connection_ends_is_dropped(clients):
    clients.ask("a")
    clients.leave("a")
    clients.polls.arrived([("T", 0)])
    await settled()
    assert (clients.looks, clients.polls.open_polls) == ([], 0)
    clients.leave("a")
    assert clients.polls.open_polls == 0


async def test_a_pop_that_is_refused_when_it_looks_waits_no_more(clients):
    clients.ask("a", error=BadRequestError("topic is gone", code=17))
    clients.polls.arrived([("T", 0)])
    await settled()
    assert clients.answers["a"][0] == 17
    assert clients.polls.open_polls == 0


async def test_pops_are_answered_when_the_node_stops_and_no_later_one_waits(clients):
    clients.ask("a")
    clients.polls.end_all()
    clients.ask("later")
    await settled()
    assert {name: code for name, (code, _) in clients.answers.items()} == {"a": 210, "later": 210}


@pytest.mark.parametrize(
    ("limits", "keys"),
    [
        ({"per_key_max": 2}, [KEY, KEY, KEY]),
        ({"polls_max": 2}, [KEY, KEY._replace(group="H"), KEY]),
        ({"keys_max": 2}, [KEY, KEY._replace(group="H"), KEY._replace(group="I")]),
        ({"per_connection_max": 2}, [KEY, KEY._replace(group="H"), KEY]),
    ],
)
async def test_one_more_than_the_limit_is_refused(make, limits, keys):
    clients = make(**limits)
    assert [clients.ask(index, key) is not None for index, key in enumerate(keys)] == [True, True, False]
    assert (clients.polls.refused, clients.polls.open_polls) == (1, 2)
    clients.leave(0)
    assert clients.ask("again", keys[2]) is not None


async def test_a_known_key_has_room_when_no_further_key_has(make):
    clients = make(keys_max=1)
    assert clients.ask("a") is not None
    assert clients.ask("b") is not None
    assert clients.ask("c", KEY._replace(queue_id=0)) is None


async def test_nothing_is_kept_of_pops_that_are_over(clients):
    for number in range(500):
        clients.ask(number, PollKey(f"T{number}", "G", ALL_QUEUES))
        clients.leave(number)
    polls = clients.polls
    assert (polls._by_key, polls._by_topic, polls._by_connection) == ({}, {}, {})
    assert len(polls._deadlines) <= 65
