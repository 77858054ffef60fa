"""When a node dies at a call to its disk."""

import os
import signal

import pytest

from tests.faults.controlled.dying import CUT, ROLE, Death


@pytest.fixture
def signals(monkeypatch):
    """Signals that the process has sent."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    return sent


def test_it_dies_at_the_call_that_its_file_names_and_at_no_other(tmp_path, signals):
    file = tmp_path / "node.death"
    death = Death(file)
    file.write_text("cut 2")
    death.reach()
    death.begin(ROLE)
    death.reach()
    death.end()
    death.begin(CUT)
    death.reach()
    assert signals == []
    assert file.exists()
    death.reach()
    assert signals == [(os.getpid(), signal.SIGKILL)]
    # What is gone tells the runner that the node died of it.
    assert not file.exists()


def test_calls_of_an_earlier_time_do_not_count(tmp_path, signals):
    file = tmp_path / "node.death"
    file.write_text("cut 2")
    death = Death(file)
    for _ in range(3):
        death.begin(CUT)
        death.reach()
        death.end()
    assert signals == []


def test_it_lives_without_a_file_and_when_it_was_disarmed_meanwhile(tmp_path, signals):
    file = tmp_path / "node.death"
    death = Death(file)
    death.begin(CUT)
    death.reach()
    file.write_text("cut 1")
    death.begin(CUT)
    file.unlink()
    death.reach()
    assert signals == []
