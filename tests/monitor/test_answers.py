"""Answers of nodes: checked, bounded and safe to draw."""

import unicodedata

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.monitor.builders import connection, master, slave
from trioha.broker_status import ArchiveStatus, BrokerRuntimeInfo, BrokerSettings
from trioha.distribution import Distribution
from trioha.errors import RemoteProtocolError
from trioha.outside_text import TEXT_MAX, clean
from trioha_monitor.answers import CONNECTIONS_MAX, WARNINGS_MAX, AnswerFilter
from trioha_monitor.texts import OTHER, Names

HOSTILE_TEXTS = (
    "\x1b[2J\x1b[31m",
    "\x9b31m",
    "[red]x[/red][@click=app.quit]",
    "a\nb\tc\rd\x00",
    "\u202eabc\u2066",
    "\u0627\u0644\u062c\u0632\u064a\u0631\u0629",
    "e" + "\u0301" * 50,
    "\u200b\u200d\ufeff",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\ud800",
    "broker-\u4e2d\u6587",
    "x" * 5_000_000,
)


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=[ascii(text[:12]) for text in HOSTILE_TEXTS])
def test_a_text_of_a_peer_stays_in_its_cell(text):
    shown = clean(text)
    assert len(shown) <= TEXT_MAX
    assert shown.isprintable()
    assert not any(unicodedata.combining(character) for character in shown)
    assert {unicodedata.bidirectional(character) for character in shown}.isdisjoint({"R", "AL", "AN"})
    assert sum(cell_len(character) for character in shown) == cell_len(shown)
    assert clean(shown) == shown


def test_names_of_ordinary_alphabets_are_shown_as_they_are():
    for name in (
        "broker-a",
        "Müller-Straße",
        "брокер",
        "中文",
        "ブローカー",
        "127.0.0.1:10911",
        "[::1]:10911",
    ):
        assert clean(name) == name


def test_names_beyond_the_maximum_are_other_and_protocol_names_always_kept():
    names = Names(known=frozenset({"PUT_OK"}), names_max=2)
    assert [names.of(name) for name in ("a", "b", "c", "a", "PUT_OK", "d")] == [
        "a", "b", OTHER, "a", "PUT_OK", OTHER,
    ]  # fmt: skip


def test_new_names_for_ever_are_counted_under_other():
    intake = AnswerFilter()
    for number in range(500):
        told = {f"STATUS_{number}_{n}": 1 for n in range(50)} | {"PUT_OK": number, "FLUSH_SLAVE_TIMEOUT": 3}
        kept = intake.check(evolve(master(1000), put_statuses=told, ended_connections=told)).status
    assert kept.put_statuses == {OTHER: 50, "PUT_OK": 499, "FLUSH_SLAVE_TIMEOUT": 3}
    assert kept.ended_connections[OTHER] > 0
    assert len(kept.ended_connections) <= 2


def test_connections_beyond_the_maximum_and_those_of_probes_are_counted():
    replicas = [connection(f"10.0.{n // 250}.{n % 250}:1", sent=5, ack=5, lag=0) for n in range(1000)]
    waiting = [connection(f"10.9.9.9:{n}", sent=-1, ack=-1, lag=0, state="HANDSHAKE") for n in range(300)]
    untold = [connection(f"10.9.9.8:{n}", sent=-1, ack=-1, lag=0, state=None) for n in range(3)]
    told = evolve(
        master(1000, *waiting, *replicas, *untold, replicas[0]), unread_connections=7, unread_probes=11
    )
    answer = AnswerFilter().check(told)
    assert [kept.address for kept in answer.status.connections] == [
        one.address for one in replicas[:CONNECTIONS_MAX]
    ]
    assert (answer.more_connections, answer.waiting_probes) == (1001 - CONNECTIONS_MAX + 7, 303 + 11)


def test_probing_hosts_beyond_the_maximum_are_counted_together():
    intake = AnswerFilter()
    for number in range(10):
        told = {f"10.{number}.0.{n}": {"EOF": 2, "\x1b[2J": 1} for n in range(50)}
        kept = intake.check(evolve(master(1), probes=told)).status.probes
    assert kept == {OTHER: {"EOF": 100, "\N{REPLACEMENT CHARACTER}[2J": 50}}
    with pytest.raises(RemoteProtocolError, match="impossible number of probes"):
        intake.check(evolve(master(1), probes={"a": {"EOF": -1}}))


def test_warnings_beyond_the_maximum_are_counted():
    kept = AnswerFilter().check(evolve(master(1), warnings=tuple(f"w{n}\x1b" for n in range(100)))).status
    assert kept.warnings[:2] == ("w0\N{REPLACEMENT CHARACTER}", "w1\N{REPLACEMENT CHARACTER}")
    assert kept.warnings[WARNINGS_MAX:] == ("84 more warnings",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_offset", -1),
        ("max_offset", 2**63),
        ("min_offset", -2),
        ("flushed_offset", 10**4000),
        ("dispatched_offset", True),
        ("in_sync_slaves", -1),
        ("files", -1),
        ("broker_id", 2**64),
        ("put_statuses", {"PUT_OK": -1}),
        ("ended_connections", {"EOF": 10**400}),
    ],
)
def test_an_impossible_answer_is_refused(name, value):
    with pytest.raises(RemoteProtocolError, match="answered with an impossible "):
        AnswerFilter().check(evolve(master(1000), **{name: value}))


@pytest.mark.parametrize(
    "changes",
    [
        {"sent_offset": 10**400},
        {"ack_offset": -2},
        {"lag_ms": 2**63},
        {"last_received_ms": -(2**64)},
        {"transferred_bytes_per_s": 2**64},
        {"ack_latency_us": Distribution(1, 2, 10**400, 4)},
    ],
)
def test_an_impossible_connection_is_refused(changes):
    bad = evolve(connection("10.0.0.1:1", sent=5, ack=5, lag=0), **changes)
    with pytest.raises(RemoteProtocolError, match="impossible"):
        AnswerFilter().check(master(1000, bad))


def test_impossible_settings_and_figures_of_the_table_are_dropped():
    names = [field.name for field in fields(BrokerSettings)]
    told = evolve(
        master(1000),
        settings=BrokerSettings(**dict.fromkeys(names, 10**400)),
        table=BrokerRuntimeInfo(booted_ms=-1, earliest_ms=2**70, disk_total_bytes=10**400, puts_total=5),
    )
    kept = AnswerFilter().check(told).status
    assert kept.settings == BrokerSettings()
    assert kept.table == BrokerRuntimeInfo(puts_total=5)


texts = st.text(max_size=100) | st.sampled_from(HOSTILE_TEXTS[:-1])


@given(role=texts, name=texts, state=texts, verdict=texts, warnings=st.lists(texts), puts=st.lists(texts))
def test_no_text_of_an_answer_escapes(*, role, name, state, verdict, warnings, puts):
    client = slave(5).client
    told = evolve(
        master(5, connection(name, sent=5, ack=5, lag=0, state=state)),
        role=role,
        cluster_name=name,
        broker_name=name,
        version=name,
        ha_address=name,
        client=evolve(client, master_address=name, state=state, verdict=verdict, local_address=name),
        dispatch_fault=verdict,
        archive=ArchiveStatus(url=name, state=state, error=verdict, generation=name),
        warnings=tuple(warnings),
        put_statuses=dict.fromkeys(puts, 1),
        ended_connections=dict.fromkeys(puts, 1),
    )
    assert all(text == clean(text, length_max=200) for text in _texts(AnswerFilter().check(told).status))


def _texts(status):
    found = []
    left = [status]
    while left:
        value = left.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, tuple):
            left += value
        elif hasattr(value, "__attrs_attrs__"):
            left += [getattr(value, field.name) for field in fields(type(value))]
    return found


def test_impossible_figures_of_an_archive_are_dropped():
    told = evolve(
        master(5),
        archive=ArchiveStatus(
            url="s3://b/a",
            state="running",
            archived_offset=-1,
            lag_bytes=-7,
            lag_ms=-3,
            objects=-1,
            failures=2,
        ),
    )
    kept = AnswerFilter().check(told).status.archive
    assert kept == ArchiveStatus(url="s3://b/a", state="running", failures=2)
