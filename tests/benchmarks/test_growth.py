"""Growth: plots are drawn from what was measured, and from nothing else."""

import json
import math
import subprocess
import sys
from contextlib import closing
from xml.etree import ElementTree

import pytest

from tests.benchmarks import plot_growth
from tests.benchmarks.bench_growth import Growth, first_record_of, options_of
from tests.benchmarks.plot_growth import IMAGES, KEPT, draw, merge, section
from tests.benchmarks.rivals.pacer import TICK
from tests.benchmarks.rivals.page import GROWTH, PAGE, TABLE
from tests.benchmarks.rivals.sides import REPOSITORY, TriohaSide
from tests.benchmarks.rivals.svg import Axis, Curve, Point, line_plot, linear_ticks, number

SVG = "{http://www.w3.org/2000/svg}"
CONDITIONS = {
    "benchmark": "growth",
    "rocketmq": "5.5.0",
    "quick": False,
    "date": "2026-11-23 04:00 UTC",
    "cores": 2,
    "cpu": "AMD EPYC",
    "python": "3.11.7",
    "kernel": "compiled",
    "java": "17.0.15",
    "skipped": [],
}


def point(work, system, x, values, *, achieved=()):
    return {
        "work": work, "system": system, "x": x, "unit": "", "values": values, "achieved": list(achieved),
        "cpuS": {"master": [1.0] * len(values)},
    }  # fmt: skip


def run_of(*points, **more):
    return {**CONDITIONS, **more, "points": list(points)}


def test_each_value_of_a_plot_has_its_place():
    curve = Curve("trioha", [Point(1, 10, 10, 10), Point(100, 20, 15, 30)])
    root = ElementTree.fromstring(
        line_plot("a plot", [curve], x=Axis("writers", is_log=True, ticks=(1, 10, 100)), y=Axis("puts/s"))
    )
    first, second = root.iter(f"{SVG}circle")
    assert float(first.get("cx")) < float(second.get("cx"))
    # Twice as high above the x axis, which is at 0.
    axis = 340 - 52
    assert axis - float(second.get("cy")) == pytest.approx(2 * (axis - float(first.get("cy"))), abs=0.2)
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a plot", "writers", "puts/s", "trioha", "1", "10", "100", "0", "30"} <= set(labels)


def test_names_are_escaped():
    root = ElementTree.fromstring(
        line_plot("a < b & c", [Curve('"x"', [Point(1, 1, 1, 1)])], x=Axis("x"), y=Axis("y"))
    )
    assert root.find(f"{SVG}title").text == "a < b & c"


def test_nothing_measured_is_no_plot():
    with pytest.raises(ValueError, match="nothing to draw"):
        line_plot("empty", [Curve("trioha", [])], x=Axis("x"), y=Axis("y"))
    assert draw(run_of()) == {}


@pytest.mark.parametrize("high", [0.3, 1, 7, 26_000, 999_999])
def test_linear_ticks_reach_the_highest_value_in_a_few_steps(high):
    ticks = linear_ticks(high)
    assert ticks[0] == 0
    assert ticks[-2] < high <= ticks[-1] or math.isclose(ticks[-1], high)
    assert 3 <= len(ticks) <= 7


def test_labels_are_short():
    assert [number(value) for value in (0.1, 4, 1024, 20_000, 1_500_000)] == [
        "0.1",
        "4",
        "1,024",
        "20 k",
        "1.5 M",
    ]


def test_only_measured_works_are_drawn():
    drawn = draw(run_of(point("writers", "trioha", 1, [10.0]), point("writers", "RocketMQ", 1, [20.0])))
    assert list(drawn) == ["growth-writers.svg"]
    root = ElementTree.fromstring(drawn["growth-writers.svg"])
    assert len(list(root.iter(f"{SVG}circle"))) == 2


def test_a_rate_that_was_not_reached_is_hollow():
    drawn = draw(
        run_of(
            point("load", "trioha", 1000, [100.0], achieved=[999.0]),
            point("load", "trioha", 2000, [90_000.0], achieved=[1500.0]),
        )
    )
    reached, missed = ElementTree.fromstring(drawn["growth-load.svg"]).iter(f"{SVG}circle")
    assert reached.get("fill") != "#ffffff"
    assert missed.get("fill") == "#ffffff"


def test_runs_are_merged_by_their_rounds():
    whole = merge(
        [run_of(point("queues", "trioha", 1, [1.0, 3.0])), run_of(point("queues", "trioha", 1, [2.0]))]
    )
    (merged,) = whole["points"]
    assert merged["values"] == [1.0, 3.0, 2.0]
    assert merged["cpuS"] == {"master": [1.0] * 3}
    with pytest.raises(ValueError, match="quick"):
        merge([run_of(), run_of(quick=True)])


def test_the_page_shows_the_plots_of_a_run_between_its_marks():
    old = f"before\n{GROWTH.begin}\nold\n{GROWTH.end}\nafter"
    page = GROWTH.written(old, section(run_of(point("load", "trioha", 1, [1.0]))))
    assert page.startswith("before\n")
    assert page.endswith("\nafter")
    assert "images/growth-load.svg" in page
    assert "old" not in page
    assert "images/growth-writers.svg" not in page


def test_the_page_and_the_pictures_are_those_of_the_kept_run():
    run = json.loads(KEPT.read_text()) if KEPT.exists() else None
    assert run is None or not run["quick"]
    drawn = {} if run is None else draw(run)
    assert {path.name: path.read_text() for path in IMAGES.glob("growth-*.svg")} == drawn
    page = PAGE.read_text()
    assert GROWTH.written(page, section(run)) == page


def test_the_page_has_a_place_for_the_table():
    page = PAGE.read_text()
    assert "a new table" in TABLE.written(page, "a new table")
    with pytest.raises(ValueError, match="no place"):
        TABLE.written("# another page", "a table")


def test_a_quick_run_is_drawn_to_another_folder_only(tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run_of(point("load", "trioha", 1, [1.0]), quick=True)))
    monkeypatch.setattr(sys, "argv", ["plot_growth.py", str(path)])
    with pytest.raises(SystemExit, match="quick"):
        plot_growth.main()
    monkeypatch.setattr(sys, "argv", ["plot_growth.py", str(path), "--folder", str(tmp_path / "plots")])
    plot_growth.main()
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["growth-load.svg"]


def test_a_measurement_is_skipped_without_time_or_disk(tmp_path):
    class Bench:
        folder = tmp_path

    growth = Growth(bench=Bench(), sizes=None, deadline_s=math.inf, disk_bytes=10 << 30)
    assert growth.may_begin("small", disk_gib=0)
    assert not growth.may_begin("large", disk_gib=11)
    growth.deadline_s = -math.inf
    assert not growth.may_begin("late")
    assert growth.skipped == ["large: needs 11.0 GiB of disk", "late: out of time"]


def test_a_slave_begins_with_its_masters_first_record(tmp_path):
    name = f"{0:020d}"
    (tmp_path / "master" / "commitlog").mkdir(parents=True)
    record = (100).to_bytes(4, "big") + bytes(range(96))
    (tmp_path / "master" / "commitlog" / name).write_bytes(record + b"the next one")
    first_record_of(tmp_path / "master")(tmp_path / "slave")
    with (tmp_path / "slave" / "commitlog" / name).open("rb") as file:
        assert file.read(112) == record + bytes(12)


@pytest.mark.process
def test_the_pacer_says_when_every_put_is_due():
    command = [sys.executable, "-m", "tests.benchmarks.rivals.pacer", "2500", "0.1"]
    said = subprocess.run(command, capture_output=True, cwd=REPOSITORY, timeout=75, check=True).stdout
    ticks = list(TICK.iter_unpack(said))
    assert sum(count for _, count in ticks) == 250
    assert {count for _, count in ticks} == {2, 3}
    first_s, last_s = ticks[0][0], ticks[-1][0]
    assert last_s - first_s == pytest.approx(0.099)


@pytest.mark.process
def test_puts_come_at_the_offered_rate(tmp_path):
    with closing(TriohaSide(tmp_path / "trioha")) as side:
        master = side.open_master(tmp_path / "store", file_bytes=1 << 20)
        with side.slaves(tmp_path / "slaves", ha_port=master.ha_port, number=1, file_bytes=1 << 20):
            said = master.call("offered", within_s=75, bodyBytes=100, rate=2000, seconds=0.2)
    # On a busy machine puts end before all of them were made.
    assert 0 < said["puts"] <= 400
    assert 0 < said["p50Us"] <= said["p99Us"]


def test_an_unknown_work_is_an_error():
    with pytest.raises(SystemExit):
        options_of(["--works", "sleep"])
