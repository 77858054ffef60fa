"""`trioha what-if`: predict puts with other settings, from recorded sessions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich import box
from rich.table import Table
from rich.text import Text

from trioha.cli.console import out, print_json
from trioha.cli.spark import progress, spark_module
from trioha.errors import ConfigError, TriohaError
from trioha.outside_text import escaped

Values = Annotated[list[str] | None, Parameter(negative=())]

REPEATS_MAX: Final = 100
CORES_MAX: Final = 1024
PUT_OK: Final = "PUT_OK"
_COLUMNS: Final = (
    *("puts/s", "latency ms p50", "p90", "p99", "max"),
    *("lag bytes p99/max", "lag s p99/max", "not PUT_OK"),
)


def what_if(
    sessions: Annotated[list[str], Parameter(negative=())],
    /,
    *,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    bandwidth: Values = None,
    rtt: Values = None,
    slaves: Values = None,
    writers: Values = None,
    rate: Values = None,
    producers: str = "auto",
    cores: int | None = None,
    repeats: int = 3,
    master: str = "local[*]",
    report: Path | None = None,
    json: bool = False,
) -> int:
    """Predict puts with other settings, another link or other producers.

    A simulation of master, links and slaves, calibrated from the session of a master, repeats the recorded
    puts. It first predicts the settings as recorded and reports its own error. Options that are given more
    than once, or with several values separated by commas, make a grid of all combinations, which Spark
    computes in parallel.

    Parameters
    ----------
    sessions
        The session of a master, and those of its slaves if there are any: session folders, or folders of
        them.
    set_
        KEY=VALUE[,VALUE ...]: a setting of broker.conf, as in inSyncReplicas=2,3.
    bandwidth
        Bytes per second of each slave's link, each way: a number, optionally with k, M, G, Ki, Mi or Gi.
    rtt
        Round trip to add to each slave's link: 5ms, 200us, 0.1s; a bare number is ms.
    slaves
        Slaves that are connected.
    writers
        Writers of closed-loop producers, each with one put at a time.
    rate
        Puts per second of open-loop producers.
    producers
        closed (a writer sends its next put when its last one has ended), open (at the recorded times), or
        auto (as the recording suggests).
    cores
        If nodes, links and producers were recorded on one machine: how many cores it has. Then they wait for
        each other's cores, in the recording and in what is asked. Without it each has cores of its own.
    repeats
        How often each point is simulated; percentiles are the medians of the repeats'.
    master
        Where Spark runs: local[*], local[N] or spark://HOST:PORT.
    report
        HTML file to write, with a picture of the grid; it needs no other file.
    json
        Print one JSON object with `recorded`, `model` and `points`.
    """
    if report is not None and not report.absolute().parent.is_dir():
        raise TriohaError(f"{report}: its folder does not exist; make it first")
    if not 1 <= repeats <= REPEATS_MAX:
        raise ConfigError(f"{repeats} is not a number from 1 to {REPEATS_MAX}", key="--repeats")
    if cores is not None and not 1 <= cores <= CORES_MAX:
        raise ConfigError(f"{cores} is not a number from 1 to {CORES_MAX}", key="--cores")
    if writers and rate:
        raise ConfigError("--writers are of a closed loop, this is of an open one", key="--rate")
    scenarios = _module("trioha_analysis.whatif.scenario")
    axes = [
        *scenarios.setting_axes(set_ or ()),
        scenarios.bandwidth_axis(bandwidth or ()),
        scenarios.rtt_axis(rtt or ()),
        scenarios.count_axis("slaves", "slaves", slaves or (), low=0, high=scenarios.SLAVES_MAX),
        scenarios.count_axis("writers", "writers", writers or (), low=1, high=scenarios.WRITERS_MAX),
        scenarios.rate_axis(rate or ()),
    ]
    if not any(axes):
        raise ConfigError("nothing is asked", key="what-if", hint="as in --set inSyncReplicas=3 or --rtt 5ms")
    models = _module("trioha_analysis.whatif.model")
    found = models.find_model_sessions(sessions)
    model = models.model_of(*found, producers=_producers(producers), cores=cores)
    points = scenarios.grid(model.scenario, axes)
    for point in points:
        models.check(model, point.scenario)
    _module("trioha_spark.java").require_java()
    what_ifs = _module("trioha_spark.what_if")
    with progress(f"simulating {len(points)} points", shown=sys.stderr.isatty() and not json) as watch:
        answer = what_ifs.predict(model, points, repeats=repeats, master=master, watch=watch)
    document = _module("trioha_analysis.whatif.answer").document(answer)
    if report is not None:
        _module("trioha_analysis.reports.what_if_report").what_if_report(answer).write(report)
    if json:
        print_json(document)
        return 0
    print_answer(document)
    if report is not None:
        out().print(f"report: {report}", soft_wrap=True)
    return 0


def _module(name: str) -> ModuleType:
    return spark_module(name, command="what-if")


def _producers(text: str) -> Any:
    kinds = _module("trioha_analysis.whatif.producers").Producers
    try:
        return kinds(text)
    except ValueError:
        names = ", ".join(kind.value for kind in kinds)
        raise ConfigError(f"{text!r} is not one of {names}", key="--producers") from None


def print_answer(document: dict[str, Any]) -> None:
    """Print the document of `trioha_analysis.whatif.answer` as a table, with the model's error."""
    model = document["model"]
    producers = f"{model['ratePerSecond']:,.0f} puts/s of an open loop"
    if model["producers"] == "closed":
        producers = f"closed loop of {model['writers']} writers"
    table = Table(
        title=f"What if: {document['session']}, {producers}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("", overflow="fold")
    for name in _COLUMNS:
        table.add_column(name, justify="right", overflow="fold")
    table.add_row("recorded", *_cells(document["recorded"]))
    table.add_row("model, as recorded", *_cells(model), end_section=True)
    for point in document["points"]:
        label = " ".join(f"{key}={value}" for key, value in point["changes"].items())
        table.add_row(label, *_cells(point), style="bold")
    out().print(table)
    for remark in model["remarks"]:
        out().print(remark, soft_wrap=True)
    error = model["error"]
    if error["p50"] is None:
        out().print("no put waited in the recording: the model's latencies cannot be compared", style="dim")
    else:
        out().print(
            "the model's own error with the settings as recorded: "
            f"p50 {error['p50']:+.0%}, p90 {error['p90']:+.0%}, p99 {error['p99']:+.0%}, "
            f"puts/s {error['putsPerSecond']:+.0%}",
            style="dim",
        )


def _cells(row: dict[str, Any]) -> list[str | Text]:
    latency, lag_bytes, lag_s = row["latencyMs"], row["lagBytes"], row["lagSeconds"]
    ended = sum(row["statuses"].values())
    failed = [
        f"{status} {count:,} ({count / ended:.1%})"
        for status, count in row["statuses"].items()
        if status != PUT_OK
    ]
    return [
        f"{row['putsPerSecond']:,.0f}",
        *("-" if latency is None else f"{latency[name]:,.2f}" for name in ("p50", "p90", "p99", "max")),
        "-" if lag_bytes is None else f"{lag_bytes['p99']:,.0f} / {lag_bytes['max']:,.0f}",
        "-" if lag_s is None else f"{lag_s['p99']:,.3f} / {lag_s['max']:,.3f}",
        Text("\n".join(map(escaped, failed)) or "0"),
    ]
