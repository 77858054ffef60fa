import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.unit_texts import format_bytes, format_elapsed
from trioha_monitor.texts import (
    NOTHING,
    format_age,
    format_duration,
    format_latency,
    format_offset,
    format_scale,
    format_seconds,
    format_span,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (10_240, "10.0 KiB"),
        (1_023_487, "999 KiB"),
        (1_023_488, "0.98 MiB"),
        (-1536, "-1.50 KiB"),
        (2**63 - 1, "8.00 EiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(count, text):
    assert format_bytes(count) == text


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_bytes_never_take_more_than_nine_cells(count):
    assert len(format_bytes(count)) <= 9


def test_what_is_not_known_is_a_dash():
    assert format_offset(None) == NOTHING


def test_decimal_units_go_by_thousands():
    assert [format_bytes(size, decimal=True) for size in (999, 1240, -2_500_000)] == [
        "999 B",
        "1.24 kB",
        "-2.50 MB",
    ]


def test_offsets_are_written_in_full():
    assert format_offset(1234567) == "1,234,567"


@pytest.mark.parametrize(
    ("seconds", "text", "age"),
    [
        (0.9, "0s", "0s"),
        (59.99, "59s", "59s"),
        (60, "1m 00s", "1m"),
        (3599, "59m 59s", "59m"),
        (7260, "2h 01m", "2h"),
        (90_000, "1d 01h", "1d"),
    ],
)
def test_durations_have_two_units_and_ages_one(seconds, text, age):
    assert (format_duration(seconds), format_age(seconds)) == (text, age)


def test_times_are_short():
    assert [format_latency(ms) for ms in (0.214, 12.34, 120.0, 2100.0)] == [
        "0.21 ms",
        "12.3 ms",
        "120 ms",
        "2.1 s",
    ]
    assert [format_seconds(s) for s in (0.0, 0.02, 4.12, 65.0, 125.0)] == [
        "0 s", "20 ms", "4.1 s", "65.0 s", "2m 05s",
    ]  # fmt: skip
    assert [format_elapsed(s) for s in (0.4, 12.2, 180.0, 7200.0)] == ["0.4 s", "12 s", "3 min", "2 h"]
    assert [format_span(s) for s in (30.0, 60.0, 900.0)] == ["30 s", "1 min", "15 min"]


def test_scales_have_no_needless_zeros():
    assert [format_scale(count) for count in (0, 100, 1024, 1536, 100 * 1024)] == [
        "0 B", "100 B", "1 KiB", "1.5 KiB", "100 KiB",
    ]  # fmt: skip
