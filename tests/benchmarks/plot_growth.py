"""Draws the plots of docs/benchmarks.md from what `bench_growth.py` measured.

    python tests/benchmarks/plot_growth.py RUN.json ...

Several runs become one plot: points are medians of all rounds, lines through them go from the lowest to the
highest. The plots go to docs/images, and the page shows them. What they were drawn from is kept in
tests/benchmarks/growth.json, from which `python tests/benchmarks/plot_growth.py tests/benchmarks/growth.json`
draws the same again. Quick runs are drawn only with `--folder`, which changes nothing but that folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

# The benchmarks are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_growth import REACHED, WORKS
from tests.benchmarks.rivals.page import GROWTH, PAGE
from tests.benchmarks.rivals.svg import Axis, Curve, Point, line_plot

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "images"
KEPT: Final = Path(__file__).with_name("growth.json")
SYSTEMS: Final = ("trioha", "RocketMQ")


@frozen
class Plot:
    """How a work is shown."""

    title: str
    x: Axis
    y: Axis
    says: str
    """Below the plot, and for readers that see no pictures."""
    scale: float = 1.0
    """From the unit that was measured to that of the axis."""
    note: str = ""


PLOTS: Final[dict[str, Plot]] = {
    "catch-up": Plot(
        "Catch-up of a slave, every record checked",
        Axis("log, GiB", is_log=True, ticks=(0.1, 0.2, 0.5, 1, 2, 4)),
        Axis("MB/s"),
        "catch-up of 0.1 to 4 GiB",
    ),
    "writers": Plot(
        "Puts that wait for a slave",
        Axis("writers", is_log=True, ticks=(1, 4, 16, 64, 256, 1024)),
        Axis("puts/s"),
        "puts per second of 1 to 1,024 writers",
    ),
    "queues": Plot(
        "Consume queues and index built",
        Axis("queues", is_log=True, ticks=(1, 10, 100, 1000, 10_000)),
        Axis("records/s"),
        "records per second dispatched to 1 to 10,000 queues",
    ),
    "load": Plot(
        "Time of a put to its ack, 99th percentile",
        Axis("puts/s offered"),
        Axis("ms", is_log=True),
        "99th percentile of put latency against the offered load",
        scale=1e-3,
        note="hollow: rate not reached",
    ),
}


def merge(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One run of several, with the rounds of all. Raises ValueError if they cannot be compared."""
    if len({(run["benchmark"], run["rocketmq"], run["quick"]) for run in runs}) != 1:
        raise ValueError("the runs are not all of bench_growth.py, of one rival, and all quick or all whole")
    points: dict[tuple[str, str, float], dict[str, Any]] = {}
    for run in runs:
        for point in run["points"]:
            key = point["work"], point["system"], point["x"]
            whole = points.setdefault(key, {**point, "values": [], "achieved": [], "cpuS": {}})
            whole["values"] += point["values"]
            whole["achieved"] += point["achieved"]
            for process, used_s in point["cpuS"].items():
                whole["cpuS"].setdefault(process, []).extend(used_s)
    return {**runs[0], "points": [points[key] for key in sorted(points)]}


def draw(run: Mapping[str, Any]) -> dict[str, str]:
    """The SVG of each work that was measured, by its file's name."""
    drawn = {}
    for work, plot in PLOTS.items():
        curves = [
            Curve(system, [_point(point, plot) for point in run["points"] if _is_of(point, work, system)])
            for system in SYSTEMS
        ]
        if any(curve.points for curve in curves):
            drawn[f"growth-{work}.svg"] = line_plot(plot.title, curves, x=plot.x, y=plot.y, note=plot.note)
    return drawn


def _is_of(point: Mapping[str, Any], work: str, system: str) -> bool:
    return bool(point["work"] == work and point["system"] == system)


def _point(point: Mapping[str, Any], plot: Plot) -> Point:
    values = [value * plot.scale for value in point["values"]]
    achieved = point["achieved"]
    return Point(
        x=point["x"],
        y=statistics.median(values),
        low=min(values),
        high=max(values),
        is_hollow=bool(achieved) and statistics.median(achieved) < REACHED * point["x"],
    )


def section(run: Mapping[str, Any] | None) -> str:
    """What the page has between its marks."""
    if run is None:
        return "Plots follow when they are measured."
    names = [work for work in WORKS if f"growth-{work}.svg" in draw(run)]
    shown = "\n\n".join(f"![{PLOTS[work].says}](images/growth-{work}.svg)" for work in names)
    return (
        f"{shown}\n\nMeasured {run['date']}, {run['cores']} cores of {run['cpu']}, "
        f"CPython {run['python']} (kernel: {run['kernel']}), RocketMQ {run['rocketmq']} on Java "
        f"{run['java']}. Medians; lines through points go from the lowest to the highest round."
    )


def main() -> None:
    """Draw, and show the plots on the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json")
    parser.add_argument("--folder", type=Path, help="draw to this folder, and leave the page alone")
    options = parser.parse_args()
    try:
        run = merge([json.loads(path.read_text()) for path in options.runs])
    except (ValueError, OSError) as error:
        sys.exit(f"not drawn: {error}")
    folder = options.folder or IMAGES
    if options.folder is None:
        if run["quick"]:
            sys.exit("not drawn: figures of a quick run are not shown; --folder draws them elsewhere")
        page = GROWTH.written(PAGE.read_text(), section(run))
        for old in IMAGES.glob("growth-*.svg"):
            old.unlink()
        KEPT.write_text(json.dumps(run, indent=1) + "\n")
        PAGE.write_text(page)
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in draw(run).items():
        (folder / name).write_text(svg)
        print(folder / name)
    for skipped in run["skipped"]:
        print(f"skipped when it was measured: {skipped}")


if __name__ == "__main__":
    main()
