"""The checks of the demo."""

import socket
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.status_samples import connection_status, master_status, slave_status
from trioha.cli.demo_run import (
    AFTER,
    BEFORE,
    DURING,
    DemoRun,
    check_clients,
    check_puts,
    check_replay,
    port_to_come_back_to,
)
from trioha.cli.load import LoadResult
from trioha.errors import TriohaError


def load_result(complete: bool = True, **statuses: int) -> LoadResult:
    return LoadResult(
        statuses=statuses,
        remarks={},
        latency_ms={},
        count=sum(statuses.values()),
        seconds=1.0,
        bytes=0,
        reconnects=0,
        complete=complete,
    )


@pytest.mark.parametrize(
    ("act", "result", "held"),
    [
        (BEFORE, load_result(PUT_OK=5), True),
        (BEFORE, load_result(PUT_OK=5, FLUSH_SLAVE_TIMEOUT=1), False),
        (BEFORE, load_result(complete=False, PUT_OK=5), False),
        (AFTER, load_result(PUT_OK=5, SLAVE_NOT_AVAILABLE=1), False),
        (DURING, load_result(PUT_OK=5, SLAVE_NOT_AVAILABLE=1), True),
        (DURING, load_result(PUT_OK=5, FLUSH_SLAVE_TIMEOUT=1, SLAVE_NOT_AVAILABLE=1), True),
        (DURING, load_result(PUT_OK=6), False),
        (DURING, load_result(PUT_OK=5, SLAVE_NOT_AVAILABLE=1, CONNECTION_LOST=1), False),
        (DURING, load_result(complete=False, PUT_OK=5, SLAVE_NOT_AVAILABLE=1), False),
    ],
)
def test_puts_are_checked_by_act(act, result, held):
    said: list[str] = []
    demo_run = DemoRun(log=said.append)
    check_puts(demo_run, act, result)
    assert [check.held for check in demo_run.checks] == [held]
    assert demo_run.all_held is held
    assert said[0].startswith("ok: " if held else "FAILED: ")


def clients(*events: tuple[str, int]) -> list[bool]:
    """Results of the checks of producer and consumer, of sends and receipts of messages of one queue."""
    demo_run = DemoRun(log=lambda text: None)
    for what, number in events:
        if what == "received":
            demo_run.clients.note_received(number, (0, number))
        else:
            demo_run.clients.note_sent(number, what, None if what == "NO_ANSWER" else (0, number))
    check_clients(demo_run)
    return [check.held for check in demo_run.checks]


SENT_AND_RECEIVED = (("PUT_OK", 0), ("received", 0), ("SLAVE_NOT_AVAILABLE", 1), ("received", 1))


def test_clients_hold_if_each_stored_message_was_received_once_in_order():
    assert clients(*SENT_AND_RECEIVED) == [True, True, True]


@pytest.mark.parametrize(
    ("events", "held"),
    [
        ([], [False, False, False]),
        ([*SENT_AND_RECEIVED, ("NO_ANSWER", 2)], [False, True, True]),
        ([*SENT_AND_RECEIVED, ("PUT_OK", 2)], [True, False, True]),
        ([*SENT_AND_RECEIVED, ("received", 1)], [True, False, True]),
        (
            [*SENT_AND_RECEIVED, ("PUT_OK", 2), ("PUT_OK", 3), ("received", 3), ("received", 2)],
            [True, True, False],
        ),
    ],
    ids=["nothing", "no-answer", "lost", "duplicated", "out-of-order"],
)
def test_each_finding_of_the_clients_fails_its_check(events, held):
    assert clients(*events) == held


def test_puts_of_the_producer_count_beside_those_of_the_loads():
    demo_run = DemoRun(log=lambda text: None, puts={BEFORE: load_result(PUT_OK=5)})
    demo_run.clients.note_sent(0, "PUT_OK", (0, 0))
    demo_run.clients.note_sent(1, "SLAVE_NOT_AVAILABLE", (0, 1))
    assert demo_run.statuses == {"PUT_OK": 6, "SLAVE_NOT_AVAILABLE": 1}


def test_a_run_without_checks_has_not_held():
    assert not DemoRun(log=print).all_held


MASTER = master_status(900, connection_status("127.0.0.1:3", sent=900, connection_id=2))
SLAVE = slave_status(900)
SESSION = {"events": 10, "dropped": 0, "lost": 0}
REPLAYED = {
    "sessions": [
        {"session": "m", "maxOffset": 900, **SESSION},
        {"session": "s1", "maxOffset": 300, **SESSION},
        {"session": "s2", "maxOffset": 900, **SESSION},
    ],
    "connections": [
        {"session": "m", "conn": 1, "sentOffset": 400, "ackOffset": 300},
        {"session": "m", "conn": 2, "sentOffset": 900, "ackOffset": 900},
        {"session": "s1", "conn": 1, "receivedOffset": 300, "reportedOffset": 300},
        {"session": "s2", "conn": 1, "receivedOffset": 900, "reportedOffset": 900},
    ],
    "waits": [
        {"session": "m", "status": "PUT_OK", "count": 7},
        {"session": "m", "status": "SLAVE_NOT_AVAILABLE", "count": 2},
    ],
}


def judged(replayed: dict[str, Any]) -> list[bool]:
    """Results of the checks of offsets, group commits and completeness."""
    demo_run = DemoRun(
        log=lambda text: None,
        puts={BEFORE: load_result(PUT_OK=5), DURING: load_result(PUT_OK=2, SLAVE_NOT_AVAILABLE=2)},
        sessions=[Path("x/m"), Path("x/s1"), Path("x/s2")],
    )
    check_replay(demo_run, replayed, master=MASTER, slave=SLAVE)
    return [check.held for check in demo_run.checks]


def test_a_replay_that_equals_the_status_of_the_nodes_holds():
    assert judged(REPLAYED) == [True, True, True]


@pytest.mark.parametrize(
    ("table", "row", "column", "value", "verdict"),
    [
        ("sessions", 0, "maxOffset", 899, [False, True, True]),
        ("sessions", 2, "maxOffset", 899, [False, True, True]),
        ("connections", 1, "sentOffset", 899, [False, True, True]),
        ("connections", 1, "ackOffset", 899, [False, True, True]),
        ("connections", 1, "conn", 3, [False, True, True]),
        ("connections", 3, "receivedOffset", 899, [False, True, True]),
        ("connections", 3, "reportedOffset", None, [False, True, True]),
        ("waits", 0, "count", 8, [True, False, True]),
        ("waits", 1, "status", "FLUSH_SLAVE_TIMEOUT", [True, False, True]),
        ("sessions", 1, "dropped", 1, [True, True, False]),
        ("sessions", 2, "lost", 1, [True, True, False]),
    ],
)
def test_a_replay_that_differs_in_one_figure_does_not_hold(table, row, column, value, verdict):
    replayed: dict[str, Any] = deepcopy(REPLAYED)
    replayed[table][row][column] = value
    assert judged(replayed) == verdict


def test_a_replay_without_the_connection_is_an_error():
    with pytest.raises(TriohaError, match="no connection in session s2"):
        judged(REPLAYED | {"connections": REPLAYED["connections"][:3]})


def test_the_slave_comes_back_to_a_port_that_is_free_as_is_its_vip_port(monkeypatch):
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port - 1))
        taken.listen()
        tried = [port - 1, port + 1, port]
        monkeypatch.setattr("trioha.cli.demo_run.random.sample", lambda _ports, k: tried[:k])
        assert port_to_come_back_to() == port
        tried.pop()
        with pytest.raises(TriohaError, match="none of 100 ports"):
            port_to_come_back_to()
