"""Times as users write them: local time unless Z or an offset is given."""

import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from trioha.cli.times import time_option_ms
from trioha.times import MomentError, clock_text, offset_ns, parse_moment, parse_time_ms, zone_text
from trioha_spark.sources.options import time_option

BERLIN = ZoneInfo("Europe/Berlin")
S = 10**9
H = 3600 * S


def ns(text):
    return round(datetime.fromisoformat(text).timestamp()) * S


START = ns("2026-11-21T23:30:00+01:00")
END = ns("2026-11-22T04:00:00+01:00")


def parse(text, *, start_ns=START, end_ns=END, now_ns=None):
    return parse_moment(text, start_ns=start_ns, end_ns=end_ns, now_ns=now_ns, zone=BERLIN)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("23:40", "2026-11-21T23:40:00+01:00"),
        # Over midnight: the first such time of the recording.
        ("03:12:00", "2026-11-22T03:12:00+01:00"),
        ("3:12", "2026-11-22T03:12:00+01:00"),
        ("03:12:00Z", "2026-11-22T03:12:00Z"),
        ("03:12:00 z", "2026-11-22T03:12:00Z"),
        ("04:12:00+02:00", "2026-11-22T04:12:00+02:00"),
        ("04:12:00+0200", "2026-11-22T04:12:00+02:00"),
        ("20:12:00-05", "2026-11-21T20:12:00-05:00"),
        ("2026-11-22 01:02:03", "2026-11-22T01:02:03+01:00"),
        ("2026-11-22T01:02", "2026-11-22T01:02:00+01:00"),
        ("2026-11-22T01:02:03Z", "2026-11-22T01:02:03Z"),
        ("2026-11-22T01:02:03+05:30", "2026-11-22T01:02:03+05:30"),
        ("2026-11-22", "2026-11-22T00:00:00+01:00"),
        # Summer time, whatever the recording has.
        ("2026-07-01 12:00", "2026-07-01T12:00:00+02:00"),
    ],
)
def test_clock_times_are_local_without_an_offset(text, moment):
    assert parse(text) == ns(moment)


def test_fractions_are_exact():
    assert parse("23:40:00.123456789") == ns("2026-11-21T23:40:00+01:00") + 123_456_789
    assert parse("23:40:00.5Z") == ns("2026-11-21T23:40:00Z") + 500_000_000


def test_time_that_is_not_covered_is_the_nearest():
    assert parse("22:00") == ns("2026-11-21T22:00:00+01:00")
    assert parse("05:00") == ns("2026-11-22T05:00:00+01:00")


def test_second_in_which_the_recording_begins_is_in_it():
    assert parse("23:30:00", start_ns=START + 900_000_000) == START
    # Days later there would be one that is wholly in it.
    assert parse("23:30:00", start_ns=START + 900_000_000, end_ns=END + 48 * H) == START


def test_hour_that_the_clock_repeats():
    first, second = ns("2026-10-25T02:30:00+02:00"), ns("2026-10-25T02:30:00+01:00")
    assert parse("02:30", start_ns=first - H, end_ns=second + H) == first
    assert parse("02:30", start_ns=first + H // 2, end_ns=second + H) == second
    assert parse("2026-10-25 02:30", start_ns=first + H // 2, end_ns=second + H) == second


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("+90", START + 90 * S),
        ("+90s", START + 90 * S),
        ("+ 1.5 m", START + 90 * S),
        ("-2h", START - 2 * H),
        ("+250ms", START + 250_000_000),
        ("+1d", START + 24 * H),
        ("50%", (START + END) // 2),
        ("37.5 %", START + (END - START) * 375 // 1000),
        ("begin", START),
        ("START", START),
        ("end", END),
    ],
)
def test_spans_and_shares(text, moment):
    assert parse(text) == moment


@pytest.mark.parametrize(
    "text",
    ["25:00", "03:60", "03:12:61", "2026-13-01 03:12", "2026-02-30", "101%", "03:12+02:99", "0000-01-01"],
)
def test_text_like_a_time_that_names_none_is_an_error(text):
    with pytest.raises(MomentError):
        parse(text)


@pytest.mark.parametrize("text", ["", "event lost", "lag > 3s", "٠٣:١٢", "12", "03:12 PM", "+1" * 40, "noon"])
def test_other_words_are_left_to_the_caller(text):
    assert parse(text) is None


def test_zone_of_the_system_counts_where_none_is_named(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert parse_moment("19:00", start_ns=START, end_ns=END) == ns("2026-11-21T19:00:00-05:00")
        assert clock_text(START) == "2026-11-21 17:30:00.000"
        assert zone_text([START]) == "EST (UTC-05:00)"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_are_shown_with_their_zone():
    assert clock_text(START + 500_000_000, BERLIN) == "2026-11-21 23:30:00.500"
    assert zone_text([START, END], BERLIN) == "CET (UTC+01:00)"
    assert zone_text([START - 100 * 24 * H, END], BERLIN) == "CEST (UTC+02:00), CET (UTC+01:00)"
    assert zone_text([START], UTC) == "UTC"
    assert zone_text([START], timezone(timedelta(hours=-3, minutes=-30))) == "UTC-03:30"
    assert zone_text([], BERLIN) == "UTC"
    assert offset_ns(START, BERLIN) == H


def test_shown_time_is_parsed_as_the_same_time():
    for at_ns in range(START, END, 611 * S):
        assert parse(clock_text(at_ns, BERLIN)) == at_ns


def test_times_out_of_range_are_shown():
    for at_ns in (2**63 - 1, -(2**63), 10**30):
        assert clock_text(at_ns, UTC)
        assert offset_ns(at_ns, UTC) == 0
        assert zone_text([at_ns], UTC) == "UTC"
    assert clock_text(10**30, BERLIN) == "1000000000000000000000 s since 1970"


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2026-01-31T12:00:00Z", 1_769_860_800_000),
        ("2026-01-31 14:00+0200", 1_769_860_800_000),
        ("2026-01-31T12:00:00.5+00:00", 1_769_860_800_500),
        ("1969-01-01", 0),
    ],
)
def test_a_time_of_any_day_is_the_same_for_commands_archives_and_spark(text, expected_ms):
    assert parse_time_ms(text) == expected_ms
    assert time_option_ms(text, key="--to-time") == expected_ms
    assert time_option({"fromTime": text}, "fromTime") == expected_ms


def test_a_time_without_a_zone_is_local_for_all(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        for read in (
            parse_time_ms,
            lambda text: time_option_ms(text, key="--at"),
            lambda text: time_option({"toTime": text}, "toTime"),
        ):
            assert read("2026-01-31T17:30:00") == 1_769_860_800_000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "12:00", "+90s", "50%", "end", "2026-13-01", "99999999999999999999"])
def test_what_names_no_time_of_a_day_is_refused(text):
    with pytest.raises(MomentError, match="is not a time"):
        parse_time_ms(text)
