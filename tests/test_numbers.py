"""The one reader of numbers from outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.numbers import I32, I64, NATURAL32, Range, parse_int

NO_NUMBERS = (
    "", "-", "--5", "+5", " 5", "5 ", "5\n", "1_000", "\u0665", "\uff15", "\u00b2", "5.0", "1e3", "0x10",
    "9" * 21, None, True, False, 1.0, [1], {"a": 1}, b"5", float("nan"),
)  # fmt: skip


def test_what_is_no_integer_and_no_ascii_digits_with_an_optional_minus_is_refused() -> None:
    for value in NO_NUMBERS:
        with pytest.raises(ValueError, match="not a whole number"):
            parse_int(value, I64)


def test_numbers_beyond_the_range_are_refused_in_a_short_line() -> None:
    for value in (2**31, -(2**31) - 1, "2147483648", "-2147483649", 1 << 20_000):
        with pytest.raises(ValueError, match="not within -2147483648 to 2147483647") as refused:
            parse_int(value, I32)
        assert len(str(refused.value)) < 120


@given(st.integers(I64.low, I64.high))
def test_each_number_in_range_is_read_from_its_text_and_as_it_is(number: int) -> None:
    assert parse_int(str(number), I64) == number
    assert parse_int(number, I64) == number


@given(st.text())
def test_no_text_raises_anything_but_value_error(text: str) -> None:
    try:
        number = parse_int(text, Range(0, 9))
    except ValueError:
        return
    assert 0 <= number <= 9


def test_leading_zeros_and_minus_zero_are_numbers() -> None:
    assert parse_int("007", NATURAL32) == 7
    assert parse_int("-0", NATURAL32) == 0
