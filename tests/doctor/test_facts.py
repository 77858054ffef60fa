"""Readers of what brokers answer and files have: tables, clocks, broker.conf, histories of findings."""

import pytest

from tests.remoting.recorded import answers
from trioha.config.loading import InvalidConfig, LoadedConfig
from trioha.doctor.collector import clock_reading
from trioha.doctor.conf_files import conf_facts
from trioha.doctor.findings import Finding
from trioha.doctor.history import ENDED_KEPT_MS, History
from trioha.doctor.tables import TABLE_REQUESTS, Table, parse_table
from trioha.errors import RemoteProtocolError
from trioha.remoting.codes import RequestCode
from trioha.remoting.runtime_table import parse_runtime_info, uptime_s_of
from trioha.severity import Severity

SESSIONS = ("remoting-4.9.7/098-probe--master", "remoting-5.3.3/070-probe--master")


@pytest.mark.parametrize("session", SESSIONS)
def test_tables_of_real_brokers_are_read(session):
    recorded = answers(session)
    topics = parse_table("topics", recorded[TABLE_REQUESTS["topics"]].body)
    groups = parse_table("groups", recorded[TABLE_REQUESTS["groups"]].body)
    consumer = parse_table("consumer_offsets", recorded[TABLE_REQUESTS["consumer_offsets"]].body)
    delays = parse_table("delay_offsets", recorded[TABLE_REQUESTS["delay_offsets"]].body)
    assert isinstance(topics, Table)
    assert isinstance(groups, Table)
    assert "SELF_TEST_TOPIC" in topics.entries
    assert "TOOLS_CONSUMER" in groups.entries
    # Of the days in which the sessions were recorded.
    assert topics.changed_ms is not None
    assert topics.changed_ms > 1_790_000_000_000
    assert not isinstance(consumer, Table)
    assert all("@" in key for key in consumer.offsets)
    assert not isinstance(delays, Table)
    assert set(delays.offsets) == {""}


def test_the_same_topic_of_4_9_and_5_is_equal():
    old = (
        b'{"dataVersion":{"counter":1,"timestamp":5},"topicConfigTable":{"T":{"order":false,"perm":6,'
        b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}'
    )
    new = old.replace(b'{"order":false', b'{"attributes":{},"order":false')
    assert parse_table("topics", old) == parse_table("topics", new)
    assert parse_table("topics", old) != parse_table("topics", old.replace(b'"perm":6', b'"perm":4'))


@pytest.mark.parametrize("name", TABLE_REQUESTS)
def test_an_answer_that_is_no_table_is_a_protocol_error_and_one_without_entries_an_empty_table(name):
    for body in (
        b"[]",
        b'{"topicConfigTable":[],"subscriptionGroupTable":3,"offsetTable":"x"}',
        b'{"topicConfigTable":{"T":1},"subscriptionGroupTable":{"G":[]},"offsetTable":{"T@G":{"a":1}}}',
    ):
        with pytest.raises(RemoteProtocolError):
            parse_table(name, body)
    table = parse_table(name, b"{}")
    if isinstance(table, Table):
        assert table == Table(entries={})
    else:
        assert not any(table.offsets.values())


@pytest.mark.parametrize("session", SESSIONS)
def test_the_uptime_of_a_real_broker_is_read(session):
    table = parse_runtime_info(answers(session)[RequestCode.GET_BROKER_RUNTIME_INFO].body)
    uptime_s = uptime_s_of(table)
    assert uptime_s is not None
    minutes, seconds = divmod(uptime_s, 60)
    assert table["runtime"] == f"[ 0 days, 0 hours, {minutes} minutes, {seconds} seconds ]"


def test_an_uptime_of_days_is_added_up_and_one_that_makes_no_sense_is_none():
    assert uptime_s_of({"runtime": "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"}) == 183_845
    for text in ("", "[ a days ]", "[ 1 days, 1 hours, 1 minutes, 1.5 seconds ]"):
        assert uptime_s_of({"runtime": text}) is None
    assert uptime_s_of({}) is None


def test_a_clock_is_known_to_a_second_and_the_round_trip():
    reading = clock_reading(booted_ms=1_000_000, uptime_s=50, sent_s=10.0, received_s=10.2)
    assert (reading.ahead_ms_min, reading.ahead_ms_max) == (1_039_800, 1_041_000)
    assert (reading.now_ms, reading.booted_ms) == (1_050_000, 1_000_000)


def test_a_file_keeps_lines_blanks_and_the_last_value():
    facts = conf_facts(b"# c\nbrokerName=a\nslaveTimeout=3000 \nbrokerName=b\n", path="x.conf")
    assert {key: (one.value, one.line, one.has_blanks) for key, one in facts.values.items()} == {
        "brokerName": ("b", 4, False),
        "slaveTimeout": ("3000", 3, True),
    }
    assert isinstance(facts.loaded, LoadedConfig)


def test_a_file_keeps_what_a_node_refuses():
    facts = conf_facts(b"brokerRole=SYNC\nslaveTimeout=x\n", path="x.conf")
    assert isinstance(facts.loaded, InvalidConfig)
    assert [problem.line for problem in facts.loaded.problems] == [1, 2]


def finding(name: str, subject: str = "a:1") -> Finding:
    return Finding(id=name, severity=Severity.WARNING, title="", subject=subject, evidence="", remedy="")


def test_a_history_says_since_when_findings_last_and_which_have_ended():
    history = History()
    history.add([finding("x")], at_ms=1000)
    both = history.add([finding("y"), finding("x")], at_ms=2000)
    assert [(course.finding.id, course.since_ms, course.ended_ms) for course in both] == [
        ("y", 2000, None),
        ("x", 1000, None),
    ]
    one = history.add([finding("y")], at_ms=3000)
    assert [(course.finding.id, course.since_ms, course.ended_ms) for course in one] == [
        ("y", 2000, None),
        ("x", 1000, 3000),
    ]
    # It begins anew.
    again = history.add([finding("x")], at_ms=4000)
    assert [(course.finding.id, course.since_ms, course.ended_ms) for course in again] == [
        ("x", 4000, None),
        ("y", 2000, 4000),
    ]
    later = history.add([finding("x")], at_ms=4001 + ENDED_KEPT_MS)
    assert [course.finding.id for course in later] == ["x"]


def test_two_findings_of_a_check_about_one_subject_are_both_shown():
    history = History()
    assert len(history.add([finding("x"), finding("x"), finding("x", "b:1")], at_ms=1)) == 3
