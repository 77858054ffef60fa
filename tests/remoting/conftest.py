"""What all tests of remoting share."""

from __future__ import annotations

import pytest

from tests.remoting.serving import WITHIN_S
from trioha.remoting.client import RemotingClient


@pytest.fixture(autouse=True)
def answers_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an answer takes longer than the 3 s that a client waits by default."""
    monkeypatch.setitem(RemotingClient.request.__kwdefaults__, "timeout_s", WITHIN_S)
