"""Invariants of groups under controllers: each with a planted violation, and runs without any."""

import random
from functools import reduce
from itertools import pairwise

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.group_sessions import (
    MASTER,
    MS,
    SETTINGS,
    SLAVE,
    Life,
    failover,
    leads,
    put,
    put_ok,
    role,
    role_fact,
    sync_set,
)
from tests.sessions.sessions import Event, write_session
from trioha.recording.events import GroupRole, Kind, PutStatus, SetEvent
from trioha.recording.reader import open_session
from trioha_sessions.facts import read_facts
from trioha_sessions.invariants import SessionSettings, check_session
from trioha_sessions.invariants.event_batch import EventBatch
from trioha_sessions.invariants.group import (
    check_group,
    check_groups,
    groups_of,
)
from trioha_sessions.records import read_records
from trioha_sessions.role_lives import RoleEvents, describe, read_life, role_life


def life_of(path):
    return read_life(open_session(path))


def checked(folder, lives):
    (result,) = check_groups([open_session(life.write(folder)) for life in lives])
    return result


def broken(result):
    """Session, seq and sentence of each violation, by invariant."""
    return {
        each.invariant.name: [(one.session, one.seq, one.sentence) for one in each.violations]
        for each in result.results
        if each.count
    }


def test_a_right_failover_breaks_nothing_and_everything_was_checked(tmp_path):
    lives = failover()
    result = checked(tmp_path, list(lives.values()))
    assert broken(result) == {}
    assert (result.cluster_name, result.broker_name) == ("cluster", "broker-a")
    assert {one.invariant.name: one.checked for one in result.results} == {
        "one-master-per-epoch": 4,
        # Four roles, three sets.
        "epochs-go-forward": 7,
        "confirmed-is-kept": 1,
        "cut-was-not-put-ok": 1,
    }
    for life in lives.values():
        results = check_session(open_session(tmp_path / life.name))
        assert [(one.invariant.name, one.violations) for one in results if one.count] == []


def test_two_masters_of_one_epoch_are_found(tmp_path):
    lives = failover()
    other = Life("third", MASTER, (role(150, MASTER, SLAVE, epoch=2, broker_id=3, log_end=500), leads(150)))
    assert broken(checked(tmp_path, [*lives.values(), other])) == {
        "one-master-per-epoch": [
            (
                "third",
                0,
                "the master of epoch 2 is broker 3 here, and broker 2 in 20260101T000000.100Z-broker-a-0",
            )
        ]
    }


def test_a_slave_that_follows_another_master_of_its_epoch_is_found(tmp_path):
    lives = failover()
    wrong = evolve(lives["second slave"], facts=(role_fact(master_id=3, address="10.0.0.3:10911"),))
    found = broken(checked(tmp_path, [*lives.values(), evolve(wrong, name="wrong")]))
    ((session, seq, sentence),) = found.pop("one-master-per-epoch")
    assert (session, seq, found) == ("wrong", 0, {})
    assert sentence.startswith("the master of epoch 2 is broker 3 here, and broker 2 in")


def test_a_role_of_an_older_epoch_is_found(tmp_path):
    lives = failover()
    late = Life(
        "late",
        SLAVE,
        (role(300, SLAVE, SLAVE, epoch=1, broker_id=2, log_end=500), leads(300)),
        (role_fact(master_id=1, address="10.0.0.1:10911"),),
    )
    assert broken(checked(tmp_path, [*lives.values(), late])) == {
        "epochs-go-forward": [
            ("late", 0, "broker 2 is in epoch 1 after epoch 2 (20260101T000000.100Z-broker-a-0)")
        ]
    }


@pytest.mark.parametrize("set_epoch", [1, 2])
def test_a_set_epoch_that_does_not_grow_is_found(tmp_path, set_epoch):
    lives = failover()
    first = lives["first master"]
    again = sync_set(30, SetEvent.CHANGED, epoch=set_epoch, members=1, confirm=300)
    lives["first master"] = evolve(first, events=(*first.events, again))
    assert broken(checked(tmp_path, list(lives.values()))) == {
        "epochs-go-forward": [(first.name, len(first.events), f"set epoch {set_epoch} after 2, in epoch 1")]
    }


def test_a_master_that_goes_on_within_its_epoch_begins_with_the_set_that_it_had(tmp_path):
    lives = failover()
    again = Life(
        "again",
        MASTER,
        (
            role(150, MASTER, GroupRole.NONE, epoch=2, broker_id=2, log_end=500),
            leads(150),
            sync_set(150, SetEvent.CHANGED, epoch=3, members=1, confirm=500),
        ),
    )
    assert broken(checked(tmp_path, [*lives.values(), again])) == {}


def test_a_master_without_what_was_put_ok_is_found(tmp_path):
    lives = failover()
    lives["first master"] = evolve(
        lives["first master"],
        events=tuple(one for one in lives["first master"].events if one.kind != Kind.CONFIRMED),
    )
    lives["second master"] = lives["second master"].with_event(Kind.ROLE, offset=299)
    assert broken(checked(tmp_path, list(lives.values()))) == {
        "confirmed-is-kept": [
            (
                lives["second master"].name,
                0,
                (
                    "the master of epoch 2 begins with a log to 299; request 1 was PUT_OK at 300 in "
                    f"epoch 1 (record 14 of {lives['first master'].name})"
                ),
            )
        ]
    }


def test_a_master_without_what_was_confirmed_is_found_once(tmp_path):
    """Its own successor need not have it either."""
    lives = failover()
    lives["first master"] = lives["first master"].with_event(Kind.CONFIRMED, offset=301)
    third = Life("third", MASTER, (role(300, MASTER, SLAVE, epoch=3, broker_id=1, log_end=500), leads(300)))
    found = broken(checked(tmp_path, [*lives.values(), third]))
    ((session, _, sentence),) = found.pop("confirmed-is-kept")
    assert (session, found) == (lives["second master"].name, {})
    assert "the confirm offset was 301 in epoch 1" in sentence


def test_a_restarted_master_that_lost_what_was_put_ok_is_found(tmp_path):
    lives = failover()
    again = role(150, MASTER, GroupRole.NONE, epoch=2, broker_id=2, log_end=499)
    found = broken(checked(tmp_path, [*lives.values(), Life("again", MASTER, (again, leads(150)))]))
    ((session, _, sentence),) = found.pop("confirmed-is-kept")
    assert (session, found) == ("again", {})
    assert "begins with a log to 499; request 1 was PUT_OK at 500" in sentence


def test_a_cut_of_what_was_put_ok_is_found(tmp_path):
    lives = failover()
    lives["second slave"] = lives["second slave"].with_event(Kind.LOG_CUT, offset=299)
    assert broken(checked(tmp_path, list(lives.values()))) == {
        "cut-was-not-put-ok": [
            (
                lives["second slave"].name,
                2,
                (
                    "bytes of epoch 1 from 299 to 400 were cut; request 1 was PUT_OK there at 300 "
                    f"(record 14 of {lives['first master'].name})"
                ),
            )
        ]
    }


def test_without_all_acks_nothing_is_promised(tmp_path):
    settings = {**SETTINGS, "allAckInSyncStateSet": False}
    lives = {name: evolve(life, settings=settings) for name, life in failover().items()}
    lives["second master"] = lives["second master"].with_event(Kind.ROLE, offset=0)
    lives["second slave"] = lives["second slave"].with_event(Kind.LOG_CUT, offset=1)
    result = checked(tmp_path, list(lives.values()))
    assert broken(result) == {}
    assert [one.checked for one in result.results if "put-ok" in one.invariant.name] == [0]


def test_groups_are_checked_apart(tmp_path):
    """Epochs of another brokerName are other epochs."""
    lives = [life_of(life.write(tmp_path)) for life in failover().values()]
    known = [life for life in lives if life is not None]
    others = [
        evolve(
            life,
            broker_name="broker-b",
            broker_id=life.broker_id + 10,
            master_id=None if life.master_id is None else life.master_id + 10,
        )
        for life in known
    ]
    results = [check_group(group) for group in groups_of([*others, *known])]
    assert [(one.broker_name, broken(one)) for one in results] == [("broker-a", {}), ("broker-b", {})]


def test_a_session_without_controllers_has_no_life(tmp_path):
    events = [role(1, MASTER, SLAVE, epoch=1, broker_id=1, log_end=0), leads(1)]
    path = write_session(tmp_path / "s", events, settings={})
    assert life_of(path) is None


def test_every_event_is_a_sentence(tmp_path):
    lives = failover()
    found = {name: life_of(life.write(tmp_path)) for name, life in lives.items()}
    texts = {
        name: [describe(life, event) for event in (life.began, *life.events)]
        for name, life in found.items()
        if life is not None
    }
    assert texts["first master"] == [
        "NONE to MASTER in epoch 1; the log ends at 0",
        "controller 10.0.0.9:9878 leads",
        "epoch 1 begins at 0",
        "sync-state set [1] changed, set epoch 1",
        "sync-state set [1, 2] proposed, set epoch 1",
        "sync-state set [1, 2] changed, set epoch 2",
    ]
    assert texts["second master"][-2:] == ["no controller leads", "controller 10.0.0.8:9878 leads"]
    assert texts["second slave"] == [
        "NONE to SLAVE in epoch 2, master is broker 2 at 10.0.0.2:10911; the log ends at 400",
        "controller at an unknown address leads",
        "100 bytes of epoch 1 cut at 300",
        "epoch 2 begins at 300",
    ]


@given(st.integers(0, 1 << 30))
def test_a_session_cut_anywhere_keeps_the_same_of_its_role(tmp_path_factory, seed):
    chance = random.Random(seed)
    life = chance.choice(list(failover().values()))
    more = [
        put_ok(500 + at, end=chance.randrange(1000), request=at, waited_us=0)
        if chance.random() < 0.5
        else Event((500 + at) * MS, Kind.CONFIRMED, offset=chance.randrange(1000))
        for at in range(chance.randrange(8))
    ]
    life = evolve(life, events=(*life.events, *more))
    session = open_session(life.write(tmp_path_factory.mktemp("cut")))
    records, settings = read_records(session).array, SessionSettings.of(session)
    borders = [0, *sorted(chance.randrange(len(records) + 1) for _ in range(3)), len(records)]
    parts = [EventBatch(records[a:b], settings, is_first=a == 0) for a, b in pairwise(borders)]
    facts, _ = read_facts(session)
    in_parts = reduce(RoleEvents.__add__, map(RoleEvents.of, parts))
    whole = RoleEvents.of(EventBatch(records, settings, is_first=True))
    found = [role_life(session, one, facts, last_ts_ns=9) for one in (in_parts, whole)]
    assert found[0] == found[1]
    assert found[0] is not None


def test_later_segments_change_nothing(tmp_path):
    """A session in many segments has keyframes between its records."""
    for name, segment_records in (("one", 1000), ("many", 5)):
        first = failover()["first master"]
        first.write(tmp_path / name, segment_records=segment_records)
    one, many = (life_of(tmp_path / name / first.name) for name in ("one", "many"))
    assert one is not None
    assert many is not None
    assert [event.fact for event in many.events] == [event.fact for event in one.events]
    assert many.promised is not None
    assert one.promised is not None
    assert (many.promised.kind, many.promised.offset) == (one.promised.kind, one.promised.offset)


# -- sessions alone ----------------------------------------------------------------------------------------


def alone(path):
    return {
        result.invariant.name: [one.sentence for one in result.violations]
        for result in check_session(open_session(path))
        if result.count
    }


def test_put_ok_beyond_the_confirm_offset_is_found(tmp_path):
    wrong = failover()["first master"].with_event(Kind.CONFIRMED, offset=299)
    assert alone(wrong.write(tmp_path)) == {
        "put-ok-is-confirmed": ["the confirm offset is 299, request 1 was PUT_OK at 300"]
    }


def test_a_put_may_be_put_ok_without_a_member_that_left_the_set(tmp_path):
    """It began to wait for two copies, then the set became smaller: the copies are not checked."""
    master = failover()["first master"]
    events = (
        *master.events,
        sync_set(30, SetEvent.CHANGED, epoch=3, members=1, confirm=400),
        put_ok(31, end=400, request=2, waited_us=10_000),
    )
    shrunk = evolve(master, events=events)
    assert alone(shrunk.write(tmp_path / "set")) == {}
    settings = {**SETTINGS, "enableControllerMode": False}
    found = alone(evolve(shrunk, settings=settings).write(tmp_path / "fixed"))
    assert list(found) == ["put-ok-has-copies"]


def test_a_wait_that_a_role_change_ends_is_not_too_early(tmp_path):
    master = failover()["first master"]
    early = Event(22 * MS, Kind.WAIT_END, offset=400, aux=2, size=1000, flags=PutStatus.FLUSH_SLAVE_TIMEOUT)
    disk = Event(30 * MS, Kind.WAIT_END, offset=500, aux=3, size=1000, flags=PutStatus.FLUSH_DISK_TIMEOUT)
    ended = evolve(master, events=(*master.events, early))
    assert alone(ended.write(tmp_path / "slave")) == {}
    also = (*put(29, end=500, size=100, request=3, copies=2), disk)
    found = alone(evolve(ended, events=(*ended.events, *also)).write(tmp_path / "disk"))
    assert list(found) == ["timeout-after-its-time"]
