"""The rules of a connection at its master, without I/O."""

import math

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.ha.support import SETTINGS
from trioha.ha.frames import OFFSET_END
from trioha.ha.slave_progress import Report, SlaveProgress
from trioha.recording.events import CloseReason, HaState

FILE_BYTES = 1000


def progress_of(*, settings=SETTINGS, request=None, min_offset=0, max_offset=5500, now_s=0.0):
    progress = SlaveProgress(settings, file_bytes=FILE_BYTES, now_s=now_s)
    if request is not None:
        assert (
            progress.receive_request(request, min_offset=min_offset, max_offset=max_offset) is Report.REQUEST
        )
        assert progress.receive_report(request) is Report.ACK
    return progress


def offsets(progress):
    return (progress.request_offset, progress.start_offset, progress.sent_offset, progress.ack_offset)


# -- requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_offset", "start_offset"), [(0, 5000), (1, 1), (1234, 1234), (5500, 5500), (2000, 2000)]
)
def test_a_request_in_the_log_starts_the_transfer(request_offset, start_offset):
    progress = progress_of()
    assert progress.receive_request(request_offset, min_offset=0, max_offset=5500) is Report.REQUEST
    assert offsets(progress) == (request_offset, start_offset, start_offset, -1)
    assert (progress.state, progress.is_slave, progress.is_open) == (HaState.TRANSFER, True, True)
    assert progress.receive_report(request_offset) is Report.ACK
    assert progress.ack_offset == request_offset


def test_minus_one_is_not_a_request_yet():
    progress = progress_of()
    assert progress.receive_request(-1, min_offset=0, max_offset=5500) is Report.PENDING
    assert (progress.state, progress.is_slave, offsets(progress)) == (HaState.HANDSHAKE, False, (-1,) * 4)
    assert progress.receive_request(0, min_offset=0, max_offset=5500) is Report.REQUEST


@pytest.mark.parametrize("request_offset", [-2, -(2**63), OFFSET_END, 2**63 - 1])
def test_an_impossible_offset_is_not_a_slaves(request_offset):
    progress = progress_of()
    assert progress.receive_request(request_offset, min_offset=0, max_offset=5500) is Report.REFUSED
    assert (progress.is_slave, progress.close_reason) == (False, CloseReason.BAD_SIZE)
    assert progress.rejection_offset == -1


@pytest.mark.parametrize(
    ("request_offset", "reason", "rejection_offset"),
    [(5501, CloseReason.REQUEST_ABOVE_MAX, 5500), (1999, CloseReason.REQUEST_BELOW_MIN, 2000)],
)
def test_a_request_outside_of_the_log_is_answered_with_its_end_or_start(
    request_offset, reason, rejection_offset
):
    progress = progress_of()
    assert progress.receive_request(request_offset, min_offset=2000, max_offset=5500) is Report.REFUSED
    assert (progress.is_slave, progress.is_open, progress.close_reason) == (True, False, reason)
    assert (progress.rejection_offset, offsets(progress)) == (rejection_offset, (-1,) * 4)


def test_all_history_of_an_empty_log_may_be_requested():
    progress = progress_of(request=1, max_offset=0)
    assert offsets(progress) == (1, 1, 1, 1)


# -- reports ------------------------------------------------------------------------------------------------


def test_an_ack_counts_from_the_last_one_up_to_what_was_sent():
    progress = progress_of(request=1000)
    progress.sent(500)
    assert [progress.receive_report(offset) for offset in (1000, 1200, 1200, 1500)] == [
        Report.HEARTBEAT,
        Report.ACK,
        Report.HEARTBEAT,
        Report.ACK,
    ]
    assert progress.ack_offset == 1500


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        (1501, CloseReason.ACK_BEYOND_SENT),
        (2**63 - 1, CloseReason.ACK_BEYOND_SENT),
        (1199, CloseReason.ACK_WENT_BACK),
        (-1, CloseReason.ACK_WENT_BACK),
    ],
)
def test_an_ack_that_cannot_be_ends_the_connection_and_changes_no_offset(offset, reason):
    progress = progress_of(request=1000)
    progress.sent(500)
    progress.receive_report(1200)
    assert progress.receive_report(offset) is Report.REFUSED
    assert (progress.close_reason, progress.ack_offset) == (reason, 1200)
    assert progress.receive_report(1300) is Report.IGNORED
    assert progress.ack_offset == 1200


@given(st.lists(st.tuples(st.sampled_from(("report", "send", "end")), st.integers(-2, 3000)), max_size=30))
def test_no_sequence_of_reports_and_frames_breaks_the_order_of_the_offsets(steps):
    progress = progress_of(request=1000, max_offset=3000)
    before = progress.ack_offset
    for step, number in steps:
        if step == "report":
            was_open = progress.is_open
            report = progress.receive_report(number)
            assert (report is Report.IGNORED) is not was_open
        elif step == "send" and (
            longest := progress.next_body_bytes(min_offset=0, max_offset=progress.sent_offset + abs(number))
        ):
            progress.sent(min(longest, abs(number)))
        elif step == "end":
            progress.end(CloseReason.EOF)
        assert before <= progress.ack_offset <= progress.sent_offset
        assert progress.start_offset <= progress.sent_offset
        assert progress.is_open is (progress.close_reason is CloseReason.NONE)
        before = progress.ack_offset


# -- frames -------------------------------------------------------------------------------------------------


def test_frames_double_while_the_slave_lags_far_and_are_short_again_in_step():
    settings = evolve(SETTINGS, transfer_batch_bytes=100, transfer_batch_bytes_max=500)
    progress = progress_of(settings=settings, request=1)
    lengths = []
    while (longest := progress.next_body_bytes(min_offset=0, max_offset=5500)) > 0:
        body_bytes = min(longest, 5500 - progress.sent_offset)
        lengths.append(body_bytes)
        progress.sent(body_bytes)
    assert lengths[:4] == [200, 400, 500, 500]
    assert sum(lengths) == 5499
    assert progress.next_body_bytes(min_offset=0, max_offset=5501) == 100


def test_bytes_deleted_before_they_were_sent_end_the_connection():
    progress = progress_of(request=1000)
    assert progress.next_body_bytes(min_offset=2000, max_offset=5500) == 0
    assert progress.close_reason is CloseReason.REQUEST_BELOW_MIN


# -- time and end -------------------------------------------------------------------------------------------


def test_each_byte_received_moves_the_idle_deadline():
    progress = progress_of(request=0)
    assert [progress.received(now_s) for now_s in (1.0, 7.5)] == [21.0, 27.5]
    assert progress.last_received_s == 7.5
    progress.expire(27.5)
    assert progress.close_reason is CloseReason.HOUSEKEEPING


def test_before_the_request_nothing_moves_the_deadline_beyond_that_of_the_first_report():
    settings = evolve(SETTINGS, first_report_timeout_s=15.0)
    progress = progress_of(settings=settings, now_s=100.0)
    assert progress.received(114.0) == 115.0
    progress.expire(115.0)
    assert progress.close_reason is CloseReason.NO_REQUEST
    progress = progress_of(settings=settings, now_s=100.0)
    progress.receive_request(0, min_offset=0, max_offset=5500)
    assert progress.received(114.0) == 134.0


def test_the_first_reason_stays_and_shutdown_follows():
    progress = progress_of(request=0)
    progress.end(CloseReason.EOF)
    progress.expire(math.inf)
    assert (progress.state, progress.close_reason) == (HaState.TRANSFER, CloseReason.EOF)
    progress.close()
    assert (progress.state, progress.close_reason) == (HaState.SHUTDOWN, CloseReason.EOF)


def test_a_connection_that_is_closed_without_a_reason_was_shut_down():
    progress = progress_of()
    progress.close()
    assert progress.close_reason is CloseReason.SHUTDOWN
