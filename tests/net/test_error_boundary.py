"""Exceptions of a connection end at its boundary."""

import errno

import pytest
import trio
from structlog.testing import capture_logs

from trioha.net.error_boundary import ErrorBoundary


def test_an_exception_of_a_connection_does_not_leave_its_boundary():
    boundary = ErrorBoundary("HA connection")
    with boundary.around("10.0.0.1:5") as guarded:
        raise ValueError("planted")
    assert str(guarded.error) == "planted"
    assert (boundary.bugs, boundary.shortages) == (1, 0)


async def test_a_group_of_a_nursery_ends_at_the_border_and_cancellation_passes():
    boundary = ErrorBoundary("HA connection")

    async def fail():
        raise KeyError("planted")

    with boundary.around("p"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail)
    assert boundary.bugs == 1
    with trio.CancelScope() as scope:
        scope.cancel()
        with boundary.around("p") as guarded:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert guarded.error is None


def test_keyboard_interrupt_passes():
    with pytest.raises(KeyboardInterrupt), ErrorBoundary("HA connection").around("p"):
        raise KeyboardInterrupt


def test_one_kind_of_bug_is_logged_with_its_traceback_once_a_minute():
    now_s = 0.0
    boundary = ErrorBoundary("remoting connection", clock=lambda: now_s)

    def planted(error):
        with boundary.around("p"):
            raise error

    with capture_logs() as lines:
        for _ in range(1000):
            planted(ValueError("again"))
        assert len(lines) == 1
        assert lines[0]["exc_info"].__traceback__ is not None
        planted(TypeError("another kind"))
        assert len(lines) == 2
        now_s = 60.0
        planted(ValueError("again"))
    assert lines[2]["repeated"] == 999
    assert boundary.bugs == 1002


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_a_shortage_is_logged_in_one_line_without_a_traceback(error):
    boundary = ErrorBoundary("remoting connection")
    with capture_logs() as lines, boundary.around("p"):
        raise error
    assert (boundary.bugs, boundary.shortages) == (0, 1)
    assert "exc_info" not in lines[0]
