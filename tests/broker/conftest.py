"""Fixtures of the broker's tests."""

from __future__ import annotations

import pytest

from tests.broker.sending import WallClock
from tests.remoting.conftest import answers_may_take_long

__all__ = ["answers_may_take_long"]


@pytest.fixture
def wall(monkeypatch):
    """The wall clock of a log: virtual time, and what a test adds to it."""
    clock = WallClock()
    monkeypatch.setattr("trioha.store.commit_log.time", clock)
    return clock
