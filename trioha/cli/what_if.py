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
from trioha.palette import BAD

Values = Annotated[list[str] | None, Parameter(negative=())]

PUT_OK: Final = "PUT_OK"
PERCENTILES: Final = ("p50", "p90", "p99")
_COLUMNS: Final = ("puts/s", *(f"{name} ms" for name in PERCENTILES), "lag s", "failed")


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
    force: Annotated[bool, Parameter(negative=())] = False,
    report: Path | None = None,
    json: bool = False,
) -> int:
    """Predict puts with other settings, another link or other producers.

    The recorded stages of each put (append to sent, sent to acknowledged, flush) are drawn again, with the
    part replaced that changes. What the model says of the recording itself stands first; where that is off by
    more than 25 %, no prediction follows, and the exit code is 1. Options that are given more than once, or
    with several values separated by commas, make a grid of all combinations.

    Parameters
    ----------
    sessions
        The session of a master, and those of its slaves if there are any: session folders, or folders of
        them.
    set_
        KEY=VALUE[,VALUE ...]: a setting of broker.conf, as in inSyncReplicas=2,3.
    bandwidth
        Bytes per second of each slave's link: a number, optionally with k, M, G, Ki, Mi or Gi.
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
    force
        Predict also where the model is off by more than 25 % on the recording itself.
    report
        HTML file to write, with a picture of the grid; it needs no other file.
    json
        Print one JSON object with `doubt`, `recorded`, `model` and `points`.
    """
    if report is not None and not report.absolute().parent.is_dir():
        raise TriohaError(f"{report}: its folder does not exist; make it first")
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
    models, answers = _module("trioha_analysis.whatif.model"), _module("trioha_analysis.whatif.answer")
    model = models.model_of(*models.find_model_sessions(sessions), producers=_producers(producers))
    points = scenarios.grid(model.scenario, axes)
    shown, title = sys.stderr.isatty() and not json, f"predicting {len(points)} points"
    with progress(title, shown=shown, first=title) as watch:
        answer = models.predict(model, points, watch=watch)
    document = answers.document(answer, force=force)
    if report is not None:
        _module("trioha_analysis.reports.what_if_report").what_if_report(document).write(report)
    if json:
        print_json(document)
    else:
        print_answer(document, rows=answers.rows_of(document))
        if report is not None:
            out().print(f"report: {report}", soft_wrap=True)
    return 0 if force or document["doubt"] is None else 1


def _module(name: str) -> ModuleType:
    return spark_module(name, command="what-if", needs="the analysis of recordings")


def _producers(text: str) -> Any:
    kinds = _module("trioha_analysis.whatif.recorded").Producers
    try:
        return kinds(text)
    except ValueError:
        names = ", ".join(kind.value for kind in kinds)
        raise ConfigError(f"{text!r} is not one of {names}", key="--producers") from None


def print_answer(document: dict[str, Any], *, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """Print the document of `trioha_analysis.whatif.answer`, whose `rows` begin with the recording and what
    the model says of it."""
    model, doubt = document["model"], document["doubt"]
    producers = f"{model['ratePerSecond']:,.0f} puts/s of an open loop"
    if model["producers"] == "closed":
        producers = f"closed loop of {model['writers']} writers"
    table = Table(
        title=f"What if: {document['session']}, {producers}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", overflow="fold", min_width=len("model, as recorded"))
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for place, (name, found) in enumerate(rows):
        table.add_row(name, *_cells(found), style="bold" if place > 1 else None)
        if place == 1:
            shown = [_error(model["error"].get(key)) for key in ("putsPerSecond", *PERCENTILES)]
            off = [_error(model["error"]["lagSecondsP99"]), ""]
            table.add_row(
                "model's error", *shown, *off, end_section=True, style=BAD.terminal if doubt else "dim"
            )
    out().print(table)
    for name, found in rows:
        failed = _failed(found["statuses"])
        if failed:
            out().print(f"{name}: {', '.join(failed)}", soft_wrap=True)
    if doubt is not None:
        more = "forced" if document["points"] else "no prediction; --force prints it all the same"
        out().print(Text(f"{doubt}: {more}", style=BAD.terminal), soft_wrap=True)
    for remark in model["remarks"]:
        out().print(remark, soft_wrap=True)


def _error(value: float | None) -> str:
    return "" if value is None else f"{round(100 * value):+,d}%"


def _cells(row: dict[str, Any]) -> list[str | Text]:
    latency, lag_s, ranges = row["latencyMs"], row["lagSeconds"], row.get("latencyRangeMs") or {}
    ended = sum(row["statuses"].values())
    return [
        f"{row['putsPerSecond']:,.0f}",
        *("-" if latency is None else _with_range(latency[name], ranges.get(name)) for name in PERCENTILES),
        "-" if lag_s is None else f"{lag_s['p99']:,.3f}",
        f"{1 - row['statuses'].get(PUT_OK, 0) / ended:.1%}" if ended else "-",
    ]


def _with_range(value: float, found: tuple[float, float] | None) -> Text:
    shown = f"{value:,.2f}"
    return Text(shown if found is None else f"{shown}\n{found[0]:.3g}-{found[1]:.3g}")


def _failed(statuses: dict[str, int]) -> list[str]:
    ended = sum(statuses.values())
    return [f"{name} {count:,} ({count / ended:.1%})" for name, count in statuses.items() if name != PUT_OK]
