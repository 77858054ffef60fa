"""Lines of the log that come at most once in an interval."""

from trioha.log_limit import LogLimit


def test_a_line_is_due_once_in_an_interval_and_says_how_often_it_happened():
    now_s = 0.0
    limit = LogLimit(60, clock_s=lambda: now_s)
    due = {}
    for second in range(0, 180, 2):
        now_s = float(second)
        if times := limit.count():
            due[second] = times
    assert due == {0: 1, 60: 30, 120: 30}


def test_after_a_reset_the_next_time_is_the_first_one():
    limit = LogLimit(60, clock_s=lambda: 7.0)
    assert [limit.count(), limit.count(), limit.count()] == [1, 0, 0]
    limit.reset()
    assert [limit.count(), limit.count()] == [1, 0]
