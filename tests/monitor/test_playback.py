"""The player and seek expressions, with a fake clock."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import Clock
from trioha.times import MomentError, parse_moment
from trioha_monitor.playback import INTERVAL_NS, SPEEDS, Player
from trioha_monitor.replay.search import AtEvent, AtLag, AtTime, SeekError, parse_seek
from trioha_monitor.view import EventKind

S = 10**9


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def player(clock):
    return Player(100 * S, 200 * S, clock_s=clock)


def test_a_player_is_paused_at_first_and_at_the_end(player, clock):
    clock.now = 5
    assert (player.position.at_ns, player.position.is_playing) == (100 * S, False)
    player.play()
    clock.now = 15
    assert (player.position.at_ns, player.position.is_playing) == (110 * S, True)
    clock.now = 500
    assert (player.position.at_ns, player.position.is_playing) == (200 * S, False)
    player.toggle()
    clock.now = 501
    assert (player.position.at_ns, player.position.is_playing) == (101 * S, True)
    player.toggle()
    clock.now = 600
    assert (player.position.at_ns, player.position.is_playing) == (101 * S, False)


def test_a_new_speed_or_direction_counts_from_the_position(player, clock):
    player.play()
    clock.now = 10
    player.change_speed(2)
    clock.now = 12
    assert (player.position.at_ns, player.position.speed) == (118 * S, 4.0)
    player.turn()
    clock.now = 14
    assert (player.position.at_ns, player.position.is_reverse) == (110 * S, True)
    clock.now = 30
    assert (player.position.at_ns, player.position.is_playing) == (100 * S, False)
    player.play()
    clock.now = 31
    assert player.position.at_ns == 196 * S


def test_speeds_go_from_a_quarter_to_64_times(player):
    player.change_speed(-100)
    assert player.position.speed == 0.25
    player.change_speed(100)
    assert player.position.speed == 64
    assert len(SPEEDS) == 9


def test_jumps_stay_on_the_axis_and_a_playing_player_goes_on(player, clock):
    player.play()
    player.jump(150 * S)
    clock.now = 1
    assert player.position.at_ns == 151 * S
    player.jump(0)
    assert player.position.at_ns == 100 * S
    player.jump(10**20)
    assert player.position.at_ns == 200 * S
    player.extend(300 * S)
    assert player.position.end_ns == 300 * S


def test_steps_pause_at_multiples_of_the_interval(player):
    player.jump(150 * S + 30_000_000)
    player.step(1)
    assert player.position.at_ns == 150 * S + INTERVAL_NS
    player.jump(150 * S + 30_000_000)
    player.step(-1)
    assert player.position.at_ns == 150 * S
    player.step(-3)
    assert player.position.at_ns == 150 * S - 3 * INTERVAL_NS


@given(moves=st.lists(st.tuples(st.sampled_from("ptfsrjk"), st.floats(0, 30)), max_size=30))
def test_a_position_never_leaves_its_axis(moves):
    clock = Clock()
    player = Player(100 * S, 200 * S, clock_s=clock)
    for move, seconds in moves:
        match move:
            case "p":
                player.play()
            case "t":
                player.turn()
            case "f":
                player.change_speed(1)
            case "s":
                player.change_speed(-1)
            case "r":
                player.toggle()
            case "j":
                player.jump(round(seconds * 10) * S)
            case "k":
                player.step(round(seconds) - 15)
        before = player.position
        clock.now += seconds
        after = player.position
        assert before.start_ns <= after.at_ns <= after.end_ns
        if not before.is_playing:
            assert after.at_ns == before.at_ns
        elif after.is_playing:
            moved_ns = round(seconds * before.speed * S) * (-1 if before.is_reverse else 1)
            assert abs(after.at_ns - before.at_ns - moved_ns) <= 100


BEGIN = datetime(2026, 11, 21, 23, 58, 30, tzinfo=UTC)
BEGIN_NS = int(BEGIN.timestamp()) * S


def parse(text):
    return parse_seek(text, now_ns=BEGIN_NS + 10 * S, start_ns=BEGIN_NS, end_ns=BEGIN_NS + 1000 * S, zone=UTC)


@pytest.mark.parametrize(
    ("text", "after_ns"),
    [
        ("begin", 0),
        ("end", 1000 * S),
        ("+90s", 100 * S),
        ("-1.5s", 8_500_000_000),
        (" + 2 m ", 130 * S),
        ("+250ms", 10_250_000_000),
        ("37.5 %", 375 * S),
        ("23:59:00", 30 * S),
        ("23:59:00.25", 30_250_000_000),
        ("00:01", 150 * S),
        ("2026-11-21 23:59:30", 60 * S),
        ("2026-11-20T23:59:30", 60 * S - 86400 * S),
        ("23:59:00Z", 30 * S),
        ("00:59:00+01:00", 30 * S),
        ("2026-11-21 23:59:00Z", 30 * S),
    ],
)
def test_times_of_seek_expressions(text, after_ns):
    assert parse(text) == AtTime(BEGIN_NS + after_ns)


def test_a_clock_time_is_local_unless_a_zone_follows_it():
    zone = timezone(timedelta(hours=5, minutes=30))

    def at(text):
        return parse_seek(text, now_ns=BEGIN_NS, start_ns=BEGIN_NS, end_ns=BEGIN_NS + 1000 * S, zone=zone)

    assert at("05:29:00") == at("23:59:00Z") == at("23:59:00+00:00") == AtTime(BEGIN_NS + 30 * S)
    assert parse_moment("05:29:00", start_ns=BEGIN_NS, end_ns=BEGIN_NS + 1000 * S, zone=zone) == (
        BEGIN_NS + 30 * S
    )


@pytest.mark.parametrize(
    ("text", "until"),
    [
        ("event", AtEvent()),
        ("Event lost", AtEvent(EventKind.LOST)),
        ("event in-sync of 10.0.0.2", AtEvent(EventKind.SYNC, "10.0.0.2")),
        ("event of 10.0.0.2:41", AtEvent(None, "10.0.0.2:41")),
        ("lag > 10MB", AtLag(">", 10 << 20, False)),
        ("lag>=1.5 KiB", AtLag(">=", 1536, False)),
        ("lag > 100", AtLag(">", 100, False)),
        ("lag = 0 of b", AtLag("=", 0, False, "b")),
        ("lag > 1M", AtLag(">", 1 << 20, False)),
        ("lag > 3s", AtLag(">", 3 * S, True)),
        ("lag < 500ms", AtLag("<", S // 2, True)),
        ("lag > 2m", AtLag(">", 120 * S, True)),
    ],
)
def test_conditions_of_seek_expressions(text, until):
    assert parse(text) == until


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "type a local time"),
        ("tomorrow", "is not understood"),
        ("101%", "more than there is"),
        ("25:00", "is not a time"),
        ("event explosion", "use connect, lost"),
        ("lag", "compare lag"),
        ("lag > 3 parsecs", "unknown unit"),
        ("lag !! 3", "compare lag"),
        (f"lag > {'9' * 400}", "compare lag"),
    ],
)
def test_a_text_that_is_not_understood_is_refused_with_a_hint(text, says):
    with pytest.raises((SeekError, MomentError), match=says):
        parse(text)


@pytest.mark.parametrize(
    ("comparison", "holds"),
    [("<", [1, 0, 0]), ("<=", [1, 1, 0]), (">", [0, 0, 1]), (">=", [0, 1, 1]), ("=", [0, 1, 0])],
)
def test_comparisons_of_seek_expressions(comparison, holds):
    until = AtLag(comparison, 5, False)
    assert [until.holds(lag) for lag in (4, 5, 6)] == [bool(one) for one in holds]
