"""Draws plots of what `bench_spark_growth.py` measured: time, CPU time and memory by the number of events.

    python tests/benchmarks/plot_spark_growth.py RUN.json [--folder FOLDER]

Points are medians of the rounds, lines through them go from the lowest to the highest. The plots go to
docs/images, as `spark-growth-*.svg`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# The benchmarks are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.bench_spark_growth import SIZES, SYSTEMS
from tests.benchmarks.rivals.svg import Axis, Curve, Point, line_plot

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
PLOTS: Final = {
    "seconds": ("Replay of a recording", Axis("s", is_log=True)),
    "cpuS": ("CPU time of a replay, all processes", Axis("CPU s", is_log=True)),
    "driverMB": ("Memory of the driver, Python and Java", Axis("MB")),
    "executorsMB": ("Memory of the executors together", Axis("MB")),
}
"""Title and axis by figure."""
NOTE: Final = "local Spark: the driver's Java is the executor's, too"


def draw(run: Mapping[str, Any]) -> dict[str, str]:
    """The SVG of each figure, by its file's name."""
    ticks = [millions for millions in SIZES if any(point["millions"] == millions for point in run["points"])]
    x = Axis("million events", is_log=True, ticks=tuple(ticks))
    drawn = {}
    for figure, (title, axis) in PLOTS.items():
        curves = [
            Curve(
                system,
                [
                    _point(point["millions"], point[figure])
                    for point in sorted(run["points"], key=_millions)
                    if point["system"] == system
                ],
            )
            for system in SYSTEMS
        ]
        curves = [curve for curve in curves if curve.points]
        drawn[f"spark-growth-{figure}.svg"] = line_plot(title, curves, x=x, y=axis, note=NOTE)
    return drawn


def _millions(point: Mapping[str, Any]) -> float:
    return float(point["millions"])


def _point(millions: float, values: list[float]) -> Point:
    return Point(millions, statistics.median(values), min(values), max(values))


def main() -> None:
    """Draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN.json")
    parser.add_argument("--folder", type=Path, default=IMAGES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, svg in draw(json.loads(options.run.read_text())).items():
        (options.folder / name).write_text(svg)
        print(options.folder / name)


if __name__ == "__main__":
    main()
