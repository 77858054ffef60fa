"""Figures of runs become a table, and only answers that are SUCCESS count."""

import pytest

from tests.benchmarks.__main__ import BEGIN, END, PAGE
from tests.benchmarks.raw import drop_answers
from tests.benchmarks.systems import BenchmarkError
from tests.benchmarks.table import Line, Series, markdown, on_page, turns
from trioha.remoting.codec import encode
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import request, response_to

SPEED = Line("speed", "msg/s", "1,000 msg")
TIME = Line("start", "s", lower_is_better=True)


def side(*values, cpu_s=()):
    return Series(list(values), list(cpu_s), [0.5] * len(values))


def rows(*runs):
    """Cells of the table's lines, and the sentence below it."""
    *lines, _, said = markdown(runs, ours="trioha", theirs="rival").splitlines()
    return [line.strip("| ").split(" | ") for line in lines[2:]], said


def test_speeds_and_times_are_medians_of_runs_of_medians_of_rounds_beside_the_lowest_run():
    runs = [
        {
            SPEED: {"trioha": side(1, speed, 900, cpu_s=[0.1] * 3), "rival": side(100, cpu_s=[0.2])},
            TIME: {"trioha": side(2), "rival": side(5)},
        }
        for speed in (150, 200, 130)
    ]
    found, said = rows(*runs)
    assert found == [
        ["speed", "msg/s", "150", "100", "1.50", "1.30", "1,000 msg", "0.1", "0.2", "0.50"],
        ["start", "s", "2", "5", "2.50", "2.50", "", "", "", "0.50"],
    ]
    assert said.startswith("All lines are at least 1.2 times better")


@pytest.mark.parametrize(
    ("speeds", "cpu_s", "bold"),
    [
        ((119, 119, 119), 0.1, ["1.19"]),
        ((130, 130, 99), 0.1, ["0.99"]),
        ((130, 130, 130), 0.3, ["0.3"]),
        ((90, 90, 90), 0.3, ["0.90", "0.90", "0.3"]),
    ],
)
def test_what_misses_a_goal_is_bold_and_named(speeds, cpu_s, bold):
    runs = [
        {SPEED: {"trioha": side(speed, cpu_s=[cpu_s]), "rival": side(100, cpu_s=[0.2])}} for speed in speeds
    ]
    (cells,), said = rows(*runs)
    assert [cell.strip("*") for cell in cells if cell.startswith("**")] == bold
    assert said == "Lines that miss a goal: speed."


def test_a_line_without_a_goal_misses_none():
    line = Line("raw", "MB/s", has_goal=False)
    (cells,), said = rows({line: {"trioha": side(1), "rival": side(2)}})
    assert cells[4] == "0.50"
    assert "All lines" in said


def test_sides_take_turns_in_an_order_that_is_reversed_after_each_round():
    assert list(turns("ab", rounds=2)) == [
        ("b", False), ("a", False), ("a", True), ("b", True), ("b", True), ("a", True)
    ]  # fmt: skip


def test_the_table_replaces_what_is_between_its_lines_alone():
    assert on_page("a\n<!--\nold\n-->\nz", "new", begin="<!--", end="-->") == "a\n<!--\n\nnew\n\n-->\nz"
    assert "\n\nnew\n\n" in on_page(PAGE.read_text(), "new", begin=BEGIN, end=END)
    with pytest.raises(ValueError, match="no place"):
        on_page("a\n<!--\nold", "new", begin="<!--", end="-->")


def test_whole_answers_count_and_a_part_stays():
    answer = encode(response_to(request(10), ResponseCode.SUCCESS))
    buffer = bytearray(answer * 2 + answer[:9])
    assert drop_answers(buffer) == 2
    assert buffer == answer[:9]


def test_an_answer_that_is_no_success_is_an_error():
    refused = encode(response_to(request(10), ResponseCode.FLUSH_SLAVE_TIMEOUT))
    with pytest.raises(BenchmarkError, match='"code":12'):
        drop_answers(bytearray(refused))
