"""The table of the benchmarks against RocketMQ: ratios, goals, spreads, and what several runs become."""

import json
import sys

import pytest

from tests.benchmarks import bench_against_rocketmq
from tests.benchmarks.bench_against_rocketmq import merged, options_of, sizes_of
from tests.benchmarks.rivals.page import TABLE
from tests.benchmarks.rivals.report import Line, Side, as_json, line_of, lines, markdown, merge
from tests.benchmarks.rivals.works import Series, Sizes

CONDITIONS = {
    "date": "2026-11-23 04:00 UTC", "cores": 2, "cpu": "AMD EPYC", "memoryGB": 25, "python": "3.11.7",
    "trioha": "0.1.0", "kernel": "compiled", "java": "17.0.15", "rounds": 3, "warmUpRounds": 1,
    "order": "in turn",
}  # fmt: skip
SIZES = Sizes(rounds=3, catch_up_bytes=400 * 10**6, fan_out_bytes=1, start_bytes=10**9, puts_s=1.0)


def puts_line(ours, theirs, **more):
    return Line(
        "sync puts, 256 writers",
        "1/s",
        Side(ours, {"master": [20.0] * len(ours), "slave": [5.0] * len(ours)}),
        Side(theirs, {"master": [30.0] * len(theirs), "slave": [10.0] * len(theirs)}),
        cpu_for="million puts",
        **more,
    )


def run_of(*found, **more):
    run = {"benchmark": "against-rocketmq", "rocketmq": "5.5.0", "quick": False, "seconds": 1.0}
    return {**run, **more, "works": as_json(found)}


def test_more_is_better_for_rates_and_less_for_times():
    assert puts_line([30.0], [10.0]).ratio == 3
    assert puts_line([30.0], [10.0], lower_is_better=True).ratio == pytest.approx(1 / 3)


def test_a_goal_is_a_ratio_or_a_limit():
    assert puts_line([30.0], [10.0], goal=3).reached
    assert not puts_line([29.0], [10.0], goal=3).reached
    assert puts_line([29.0], [10.0]).reached
    assert puts_line([64.0], [1.0], limit=64, lower_is_better=True).reached
    assert not puts_line([65.0], [1.0], limit=64, lower_is_better=True).reached


def test_cpu_seconds_are_those_of_master_and_slave():
    line = puts_line([1.0, 2.0], [1.0, 2.0])
    assert (line.trioha.cpu_total_s, line.rocketmq.cpu_total_s) == (25.0, 40.0)
    assert Side([1.0]).cpu_total_s is None


def test_only_a_noisy_figure_shows_its_spread():
    row = markdown([puts_line([50_000, 54_000, 52_000], [19_687, 1_500, 29_000], goal=3)]).splitlines()[-1]
    assert row == (
        "| sync puts, 256 writers | 1/s | 52,000 | 19,687 (1,500..29,000) | **2.64** (1.79..36.00) | 3 "
        "| million puts | 25 | 40 | 0.0 |  |"
    )


def test_a_line_survives_its_json():
    line = puts_line([1.0, 2.0], [3.0, 4.0], goal=2, others_cores=0.5)
    assert line_of(json.loads(json.dumps(as_json([line])[0]))) == line


def test_several_runs_become_their_medians_with_the_spread_of_the_runs():
    runs = [run_of(puts_line([rate] * 3, [10.0, 20.0, 30.0], goal=3)) for rate in (40.0, 60.0, 100.0)]
    (line,) = merge(runs)
    assert line.trioha.values == [40.0, 60.0, 100.0]
    assert line.rocketmq.values == [20.0, 20.0, 20.0]
    assert line.ratios == [2.0, 3.0, 5.0]
    assert line.ratio == 3
    assert line.reached
    assert line.trioha.cpu_total_s == 25.0
    assert line_of(as_json([line])[0]) == line


def test_runs_of_different_rivals_are_not_merged():
    runs = [run_of(puts_line([1.0], [1.0]), rocketmq=version) for version in ("5.3.3", "5.5.0")]
    with pytest.raises(ValueError, match=r"5\.3\.3, 5\.5\.0"):
        merge(runs)


def test_whole_runs_and_quick_ones_are_not_merged():
    whole = run_of(puts_line([1.0], [1.0]))
    with pytest.raises(ValueError, match="quick"):
        merge([whole, run_of(puts_line([1.0], [1.0]), quick=True)])
    with pytest.raises(ValueError, match="quick"):
        merge([whole, run_of(puts_line([1.0], [1.0]), quick=True, benchmark="clients")])


def test_lines_of_the_clients_follow_in_a_merged_table(tmp_path):
    other = Line("clients: sync sends, 1 thread", "msg/s", Side([2.0]), Side([1.0]), goal=1)
    paths = []
    for number, run in enumerate(
        (run_of(puts_line([1.0], [1.0])), run_of(other, benchmark="clients"), run_of(puts_line([3.0], [1.0])))
    ):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(run))
        paths.append(path)
    whole = merged(paths)
    assert [work["work"] for work in whole["works"]] == ["sync puts, 256 writers", other.work]
    assert [work["timesBetter"] for work in whole["works"]] == [2.0, 2.0]
    assert (whole["runs"], whole["seconds"]) == (2, 3.0)


def test_another_file_is_not_merged(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json"):
        merged([path])


def test_the_merged_table_goes_to_the_page(tmp_path, monkeypatch):
    page = tmp_path / "benchmarks.md"
    page.write_text(TABLE.written(f"before\n{TABLE.begin}\n{TABLE.end}\nafter\n", "an old table"))
    monkeypatch.setattr(bench_against_rocketmq, "PAGE", page)
    paths = []
    for quick in (False, True):
        run = run_of(puts_line([3.0], [1.0]), **CONDITIONS, quick=quick)
        paths.append(tmp_path / f"{quick}.json")
        paths[-1].write_text(json.dumps(run))
    whole, quick = paths
    monkeypatch.setattr(sys, "argv", ["bench", "--merge", str(whole), "--page"])
    bench_against_rocketmq.main()
    written = page.read_text()
    assert "an old table" not in written
    assert "| sync puts, 256 writers | 1/s | 3 | 1 | 3.00 |" in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    monkeypatch.setattr(sys, "argv", ["bench", "--merge", str(quick), "--page"])
    with pytest.raises(SystemExit, match="quick"):
        bench_against_rocketmq.main()
    assert page.read_text() == written


def test_every_goal_of_the_table():
    results = {}
    for key in (
        "trioha to trioha",
        "trioha to trioha, haVerify=frame",
        "trioha to J",
        "raw sender to J",
        "J to trioha",
        "J to J",
    ):
        results[f"catch-up/{key}"] = Series([1.0])
    for side in ("trioha", "J"):
        for key in ("fan-out", "start/empty", "queues", "memory/puts master"):
            results[f"{key}/{side}"] = Series([1.0])
        for writers in (1, 16, 256):
            for metric in ("rate", "p50", "p99"):
                results[f"puts/{writers}/{metric}/{side}"] = Series([1.0])
    found = lines(results, SIZES, trioha="trioha", java="J")
    assert {line.work: line.goal for line in found} == {
        "catch-up of 400 MB, every record checked": 1.8,
        "catch-up, frames checked only": 2,
        "catch-up, trioha master, RocketMQ slave": 1,
        "catch-up, raw sender, RocketMQ slave": None,
        "catch-up, RocketMQ master, trioha slave": 1.2,
        "put to ack, 1 writer, p50": 1,
        "put to ack, 1 writer, p99": 1,
        "sync puts, 1 writer": None,
        "sync puts, 16 writers": 1,
        "sync puts, 256 writers": 3,
        "8 slaves on one master, all bytes": 1.2,
        "start to ready, empty store": 10,
        "queues and index built": 2,
        "private memory, puts master": 10,
    }


def test_a_rocketmq_slave_is_to_take_what_a_raw_sender_sends_if_that_is_less():
    for raw, goal in ((30.0, 0.75), (50.0, 1.0)):
        results = {
            "catch-up/J to J": Series([40.0]),
            "catch-up/raw sender to J": Series([raw]),
            "catch-up/trioha to J": Series([35.0]),
        }
        line, _ = lines(results, SIZES, trioha="trioha", java="J")
        assert line.goal == goal
    assert line_of(as_json([line])[0]) == line


def test_the_newest_rocketmq_is_the_rival_unless_another_is_named():
    assert options_of([]).rocketmq == "5.5.0"
    assert options_of(["--rocketmq", "5.3.3"]).rocketmq == "5.3.3"


def test_a_quick_run_has_one_round_that_counts():
    sizes = sizes_of(options_of(["--quick", "--json"]))
    assert (sizes.rounds, sizes.warm_up_rounds) == (1, 1)
    assert sizes_of(options_of(["--rounds", "5", "--warm-up", "2"])).warm_up_rounds == 2
