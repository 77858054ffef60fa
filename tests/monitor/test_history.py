from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trioha_monitor.history import Bucket, Grade, LagHistory, LagRecorder, buckets_for

lags = st.integers(min_value=0, max_value=2**62)
grades = st.sampled_from(Grade)
buckets = st.none() | st.builds(Bucket, lags, grades)


def test_a_bucket_keeps_the_worst_lag_and_the_worst_grade_each_for_itself() -> None:
    recorder = LagRecorder(bucket_s=0.5, buckets_max=10)
    recorder.add(500, Grade.GOOD, at_s=10.0)
    recorder.add(20, Grade.LOST, at_s=10.2)
    recorder.add(30, Grade.BEHIND, at_s=10.4)
    assert recorder.freeze() == LagHistory(bucket_s=0.5, first=20, buckets=(Bucket(500, Grade.LOST),))


def test_time_without_data_is_a_hole_and_not_a_zero() -> None:
    recorder = LagRecorder(bucket_s=1.0, buckets_max=10)
    recorder.add(7, Grade.GOOD, at_s=3.0)
    recorder.add(9, Grade.GOOD, at_s=6.5)
    good_7, good_9 = Bucket(7, Grade.GOOD), Bucket(9, Grade.GOOD)
    assert recorder.freeze() == LagHistory(bucket_s=1.0, first=3, buckets=(good_7, None, None, good_9))


def test_the_oldest_buckets_give_way() -> None:
    recorder = LagRecorder(bucket_s=1.0, buckets_max=3)
    for second in range(10):
        recorder.add(second, Grade.GOOD, at_s=float(second))
    assert recorder.freeze() == LagHistory(
        bucket_s=1.0, first=7, buckets=tuple(Bucket(second, Grade.GOOD) for second in (7, 8, 9))
    )


def test_a_leap_over_years_costs_no_more_than_one_bucket() -> None:
    recorder = LagRecorder(bucket_s=0.5, buckets_max=1000)
    recorder.add(1, Grade.GOOD, at_s=0.0)
    recorder.add(2, Grade.GOOD, at_s=1e9)
    assert recorder.freeze() == LagHistory(
        bucket_s=0.5, first=2_000_000_000, buckets=(Bucket(2, Grade.GOOD),)
    )


def test_a_time_that_goes_back_counts_for_the_last_bucket() -> None:
    recorder = LagRecorder(bucket_s=1.0, buckets_max=10)
    recorder.add(1, Grade.GOOD, at_s=5.0)
    recorder.add(8, Grade.GOOD, at_s=2.0)
    assert recorder.freeze().buckets == (Bucket(8, Grade.GOOD),)


def test_the_last_column_holds_the_end_and_a_short_column_repeats_its_bucket() -> None:
    history = LagHistory(bucket_s=1.0, first=10, buckets=(Bucket(1, Grade.GOOD), Bucket(2, Grade.GOOD)))
    columns = history.columns(6, end_s=11.9, span_s=3.0)
    assert [None if column is None else column.lag_bytes for column in columns] == [None, None, 1, 1, 2, 2]


@given(
    held=st.lists(buckets, max_size=80),
    first=st.integers(min_value=0, max_value=1000),
    count=st.integers(min_value=1, max_value=60),
    span_s=st.sampled_from([30.0, 60.0, 120.0]),
)
def test_no_peak_is_averaged_away_however_narrow_the_picture(
    held: list[Bucket | None], first: int, count: int, span_s: float
) -> None:
    history = LagHistory(bucket_s=0.5, first=first, buckets=tuple(held))
    end_s = (first + len(held)) * 0.5 + 0.25
    columns = history.columns(count, end_s=end_s, span_s=span_s)
    assert len(columns) == count
    # Alignment shifts the picture by less than one column: whatever began after its first column is in it.
    start_s = end_s - span_s + span_s / count
    inside = [bucket for index, bucket in enumerate(held) if bucket and (first + index) * 0.5 >= start_s]
    drawn = [column for column in columns if column]
    assert max((bucket.lag_bytes for bucket in drawn), default=-1) >= max(
        (bucket.lag_bytes for bucket in inside), default=-1
    )
    assert {bucket.lag_bytes for bucket in drawn} <= {bucket.lag_bytes for bucket in held if bucket}


@given(end_s=st.floats(min_value=100, max_value=10_000), count=st.integers(min_value=2, max_value=200))
def test_a_peak_keeps_its_height_while_time_goes_on(end_s: float, count: int) -> None:
    peak = Bucket(9999, Grade.BEHIND)
    first = int(end_s / 0.5) - 10
    history = LagHistory(bucket_s=0.5, first=first, buckets=(peak, *[Bucket(1, Grade.GOOD)] * 10))
    for later_s in (0.0, 0.2, 0.4, 0.6, 5.0):
        columns = history.columns(count, end_s=end_s + later_s, span_s=120.0)
        assert peak in columns


def test_the_span_is_covered_with_the_bucket_that_just_began() -> None:
    assert buckets_for(900.0, bucket_s=0.5) == 1801
    assert buckets_for(1.0, bucket_s=0.4) == 4


def test_the_worst_of_a_span_leaves_out_what_is_older() -> None:
    history = LagHistory(
        bucket_s=1.0,
        first=0,
        buckets=(Bucket(50, Grade.LOST), Bucket(3, Grade.GOOD), None, Bucket(4, Grade.GOOD)),
    )
    assert history.worst(end_s=3.5, span_s=2.5) == Bucket(4, Grade.GOOD)
    assert history.worst(end_s=3.5, span_s=60.0) == Bucket(50, Grade.LOST)
    assert history.worst(end_s=90.0, span_s=2.0) is None
