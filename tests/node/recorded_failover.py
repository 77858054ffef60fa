"""A pair of node processes under a scripted controller, recorded through failovers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.interop.controller import eventually
from tests.node.test_controller_mode import BOTH, Member, scripted_controller
from trioha.errors import StoreError
from trioha.recording.events import ControllerEvent, Kind
from trioha.recording.reader import find_sessions, open_session
from trioha.remoting.codes import RequestCode
from trioha_sessions.records import read_records

NOBODY = "127.0.0.1:1"
"""An address that no controller of the test has."""


def record_failovers(folder: Path) -> Path:
    """The sessions of a pair whose master dies with bytes of its own, comes back, and is elected again.

    The controllers lose their leader once while broker 2 is master.
    """
    sessions = folder / "sessions"
    settings = {
        "trioha.recordDir": sessions,
        "slaveTimeout": 500,
        "syncBrokerMetadataPeriod": 1000,
        "syncControllerMetadataPeriod": 1000,
    }
    with scripted_controller() as controller, ExitStack() as members:
        first = Member(folder, "first", controller, **settings)
        members.callback(first.end)
        controller.wait_for_master(1, first)
        second = Member(folder, "second", controller, **settings)
        members.callback(second.end)
        controller.wait_for_set(BOTH)
        first.stored(200)
        # The set cannot change, so what comes now is stored by the first one alone, and is not PUT_OK.
        refusals = controller.scripted.refuse
        refusals[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 1
        second.node.kill()
        assert first.node.load(20).statuses == {"FLUSH_SLAVE_TIMEOUT": 20}, first.node.log()
        first.node.kill()
        second.restart()
        refusals.clear()
        controller.elect(2)
        second.stored(50)
        leader, controller.scripted.leader = controller.scripted.leader, NOBODY
        eventually("the leader is lost", lambda: True if _leader_was_lost(sessions) else None)
        controller.scripted.leader = leader
        second.stored(10)
        first.restart()
        controller.wait_for_set(BOTH)
        second.stored(50)
        # Both are alive, and change their roles.
        controller.elect(1)
        controller.notify(2)
        first.stored(50)
        controller.wait_for_set(BOTH)
        first.stored(50)
        for member in (first, second):
            member.node.stop()
    return sessions


def _leader_was_lost(sessions: Path) -> bool:
    """Whether a master that had a leading controller recorded that it lost it."""
    return any(_lost_after_leading(path) for path in find_sessions([sessions]))


def _lost_after_leading(path: Path) -> bool:
    try:
        session = open_session(path)
        records = read_records(session).array
    except StoreError:
        # It is just being made.
        return False
    flags = records["flags"][records["kind"] == Kind.CONTROLLER].tolist()
    if session.is_slave or ControllerEvent.LEADER not in flags:
        return False
    return ControllerEvent.LOST in flags[flags.index(ControllerEvent.LEADER) :]
