from hypothesis import given
from hypothesis import strategies as st

from trioha.severity import Severity
from trioha_monitor.series import Bucket, Series, SeriesRecorder, buckets_for

GOOD, WARNING, BAD = Severity.GOOD, Severity.WARNING, Severity.CRITICAL
samples = st.lists(
    st.tuples(st.integers(0, 4000), st.integers(0, 2**62), st.sampled_from(Severity)), min_size=1, max_size=60
)


def recorded(steps, *, bucket_ms, buckets_max=10_000):
    """What a recorder makes of samples (each some ms after the one before), and the samples with times."""
    recorder = SeriesRecorder(bucket_ms=bucket_ms, buckets_max=buckets_max)
    at_ms = 0
    seen = []
    for step_ms, value, severity in steps:
        at_ms += step_ms
        recorder.add(value, severity, at_ms=at_ms)
        seen.append((at_ms, value, severity))
    return recorder.freeze(), seen


def test_a_bucket_keeps_the_worst_value_and_the_worst_severity():
    series, _ = recorded([(10_000, 500, GOOD), (200, 20, BAD), (200, 30, WARNING)], bucket_ms=500)
    assert (series.first, series.buckets) == (20, (Bucket(500, BAD),))


def test_time_without_data_is_a_gap_and_not_zero():
    series, _ = recorded([(3000, 7, GOOD), (3500, 9, GOOD)], bucket_ms=1000)
    assert (series.first, series.buckets) == (3, (Bucket(7), None, None, Bucket(9)))


def test_the_oldest_buckets_are_dropped():
    series, _ = recorded([(1000, value, GOOD) for value in range(10)], bucket_ms=1000, buckets_max=3)
    assert (series.first, series.buckets) == (8, (Bucket(7), Bucket(8), Bucket(9)))


def test_a_leap_over_years_costs_no_more_than_one_bucket():
    series, _ = recorded([(0, 1, GOOD), (10**15, 2, GOOD)], bucket_ms=500, buckets_max=1000)
    assert (series.first, series.buckets) == (2 * 10**12, (Bucket(2),))


def test_a_time_that_goes_back_counts_for_the_last_bucket():
    series, _ = recorded([(5000, 1, GOOD), (-3000, 8, GOOD)], bucket_ms=1000)
    assert series.buckets == (Bucket(8),)


def test_finished_buckets_are_the_same_object_until_the_next_one_is_over():
    recorder = SeriesRecorder(bucket_ms=1000, buckets_max=10)
    recorder.add(1, at_ms=0)
    recorder.add(1, at_ms=1000)
    before = recorder.freeze()
    recorder.add(2, at_ms=1900)
    after = recorder.freeze()
    assert after.finished is before.finished
    assert (before.current, after.current) == (Bucket(1), Bucket(2))


def test_the_last_column_holds_the_end_and_a_short_column_repeats_its_bucket():
    series, _ = recorded([(10_000, 1, GOOD), (1000, 2, GOOD)], bucket_ms=1000)
    columns = series.columns(6, end_ms=11_900, span_ms=3000)
    assert [None if column is None else column.value for column in columns] == [None, None, 1, 1, 2, 2]


@given(
    steps=samples,
    bucket_ms=st.sampled_from([100, 500, 700]),
    count=st.integers(1, 60),
    span_ms=st.sampled_from([30_000, 60_000, 120_000]),
)
def test_no_peak_is_averaged_away_however_it_is_cut_and_however_narrow_the_picture(
    steps, bucket_ms, count, span_ms
):
    series, seen = recorded(steps, bucket_ms=bucket_ms)
    end_ms = seen[-1][0]
    columns = series.columns(count, end_ms=end_ms, span_ms=span_ms)
    assert len(columns) == count
    drawn = [column for column in columns if column]
    # Alignment shifts the picture by less than one column: what came after its first column is in it.
    inside = [sample for sample in seen if sample[0] >= end_ms - span_ms + span_ms / count]
    assert max(bucket.value for bucket in drawn) >= max(value for _, value, _ in inside)
    assert max(bucket.severity for bucket in drawn) >= max(severity for _, _, severity in inside)
    assert {bucket.value for bucket in drawn} <= {value for _, value, _ in seen}


@given(steps=samples, bucket_ms=st.sampled_from([1, 100, 500, 10_000]), buckets_max=st.integers(1, 50))
def test_a_series_is_bounded_and_has_the_worst_of_its_time(steps, bucket_ms, buckets_max):
    series, seen = recorded(steps, bucket_ms=bucket_ms, buckets_max=buckets_max)
    assert len(series.buckets) <= buckets_max
    for index, bucket in enumerate(series.buckets):
        number = series.first + index
        values = [value for at_ms, value, _ in seen if at_ms // bucket_ms == number]
        assert (bucket.value if bucket else None) == max(values, default=None)
    assert series.worst(end_ms=seen[-1][0], span_ms=0) == series.current


@given(end_ms=st.integers(100_000, 10_000_000), count=st.integers(2, 200))
def test_a_peak_keeps_its_height_while_time_goes_on(end_ms, count):
    peak = Bucket(9999, WARNING)
    series = Series(500, end_ms // 500 - 10, (peak, *[Bucket(1)] * 9), Bucket(1))
    for later_ms in (0, 200, 400, 600, 5000):
        assert peak in series.columns(count, end_ms=end_ms + later_ms, span_ms=120_000)


def test_the_span_is_covered_with_the_bucket_that_just_began():
    assert buckets_for(900_000, bucket_ms=500) == 1801
    assert buckets_for(1000, bucket_ms=400) == 4


def test_the_worst_of_a_span_leaves_out_what_is_older():
    series = Series(1000, 0, (Bucket(50, BAD), Bucket(3), None), Bucket(4))
    assert series.worst(end_ms=3500, span_ms=2500) == Bucket(4)
    assert series.worst(end_ms=3500, span_ms=60_000) == Bucket(50, BAD)
    assert series.worst(end_ms=90_000, span_ms=2000) is None
