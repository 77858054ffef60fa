"""`trioha demo`: show that it works, end to end, on this machine."""

from __future__ import annotations

import importlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from trioha.cli.console import err, out, print_json
from trioha.cli.demo_clients import ClientKind
from trioha.cli.demo_run import BRISK, CHECKS, WATCHED, DemoRun, Plan, run_demo
from trioha.errors import ConfigError, TriohaError
from trioha.extras import how_to_install
from trioha.node.logs import configure_logs
from trioha.palette import BAD, GOOD

COUNT_DEFAULT: Final = 20_000
COUNT_MIN: Final = 100
"""With fewer messages the acts before, during and after the kill cannot be distinguished."""
REPORT_DEFAULT: Final = Path("trioha-demo.html")
PROGRESS_INTERVAL_S: Final = 0.1
EXIT_SIGNAL_BASE: Final = 128
"""A shell adds the signal's number to this for the exit code of a process that a signal ended."""


def demo(
    *,
    watch: bool = False,
    count: int = COUNT_DEFAULT,
    keep: Path | None = None,
    report: Path = REPORT_DEFAULT,
    clients: ClientKind = ClientKind.AUTO,
    json: bool = False,
) -> int:
    """Show it all: replicate, break, recover, verify, replay.

    Starts a name server, a SYNC_MASTER and a slave, sends messages, kills the slave in the middle and starts
    it again. A producer and a consumer work all the time; what one sent and the other received is compared.
    Then both logs are compared byte for byte, and the recorded sessions are replayed on Spark for a report.
    Exit code 0 only if every check held; all processes have ended.

    Parameters
    ----------
    watch
        Show the monitor during the run, at a slower pace, until q.
    count
        Messages to send.
    keep
        Keep settings, stores, sessions and logs in this folder, which must be new or empty.
    report
        The HTML file that the report of the replay is written to.
    clients
        Producer and consumer: java for RocketMQ's own, which needs Maven (the first time) and a JDK; trioha
        for those of trioha; auto for RocketMQ's if they can be had, else trioha's.
    json
        Print one JSON object instead of tables.
    """
    _require_spark()
    if count < COUNT_MIN:
        raise ConfigError(f"{count} is too few", key="--count", hint=f"at least {COUNT_MIN}")
    if watch and not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise ConfigError("this is not a terminal", key="--watch", hint="leave it out")
    report = report.absolute()
    if not report.parent.is_dir():
        raise ConfigError(f"there is no folder {report.parent}", key="--report")
    folder = Path(tempfile.mkdtemp(prefix="trioha-demo-")) if keep is None else _empty_folder(keep)
    # The client library logs what it retries.
    configure_logs(as_json=False)
    progress = _ProgressLog(quiet=watch)
    pace = WATCHED if watch else BRISK
    plan = Plan(folder=folder, report=report, count=count, pace=pace, watch=watch, clients=clients)
    demo_run = DemoRun(log=progress.write, on_terminal_released=progress.flush)
    try:
        with progress.bars(count=count):
            signal_number = trio.run(_run_until_signal, plan, demo_run, progress)
    except BaseException:
        if keep is None and not any(folder.iterdir()):
            folder.rmdir()
            raise
        err().print(f"settings, stores, sessions and logs are in {folder}", soft_wrap=True)
        raise
    if keep is None and (signal_number is not None or demo_run.all_held):
        shutil.rmtree(folder, ignore_errors=True)
    if signal_number is not None:
        err().print(f"stopped by {signal.Signals(signal_number).name}; no process is left")
        return EXIT_SIGNAL_BASE + signal_number
    kept = folder if folder.exists() else None
    if json:
        print_json(_to_json(plan, demo_run, kept))
    else:
        _print_summary(plan, demo_run, kept)
    return 0 if demo_run.all_held else 1


def _require_spark() -> None:
    """Raises TriohaError at the start if the replay at the end could not run."""
    try:
        java = importlib.import_module("trioha_spark.java")
        importlib.import_module("pyspark")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyspark", "trioha_spark"}:
            raise
        raise TriohaError(f"demo: Spark is not installed; {how_to_install('spark')}") from error
    java.require_java()


def _empty_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise ConfigError(f"{path} is not empty", key="--keep", hint="name a new folder")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", key="--keep", hint="name a new folder") from None
    return path.absolute()


class _ProgressLog:
    """Progress on stderr: a line for each step, on a terminal also bars below them.

    While the monitor has the terminal (`quiet`), there are no bars, and lines are buffered until `flush`.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._start_s = time.monotonic()
        self._buffered: list[str] | None = [] if quiet else None
        self._progress: Progress | None = None
        self._bars: tuple[TaskID, ...] = ()

    def write(self, text: str) -> None:
        line = f"{time.monotonic() - self._start_s:6.1f} s  {text}"
        if self._buffered is None:
            err().print(line, soft_wrap=True)
        else:
            self._buffered.append(line)

    def flush(self) -> None:
        buffered, self._buffered = self._buffered or [], None
        for line in buffered:
            err().print(line, soft_wrap=True)

    @contextmanager
    def bars(self, *, count: int) -> Iterator[None]:
        """Show bars until the end of the block, on a terminal; `count` is the number of messages to send."""
        if self._buffered is not None or not err().is_terminal:
            yield
            return
        columns = (
            *(SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()),
            *(TextColumn("{task.fields[figures]}"), TimeElapsedColumn()),
        )
        with Progress(*columns, console=err(), transient=True) as self._progress:
            self._bars = (
                self._progress.add_task("messages", total=count, figures=""),
                self._progress.add_task("producer", total=None, figures=""),
                self._progress.add_task("consumer", total=None, figures=""),
                self._progress.add_task("checks", total=CHECKS, figures=""),
            )
            yield

    async def run(self, demo_run: DemoRun) -> None:
        """Keep the bars up to date until cancelled."""
        if self._progress is None:
            return
        messages, producer, consumer, checks = self._bars
        while True:
            clients, is_over = demo_run.clients, demo_run.is_producer_finished
            total = max(clients.produced, 1) if is_over else None
            sent = demo_run.messages_sent
            self._progress.update(messages, completed=sent, figures=f"{sent:,} sent")
            self._progress.update(
                producer, total=total, completed=clients.produced, figures=f"{clients.produced:,} produced"
            )
            self._progress.update(
                consumer, total=total, completed=clients.consumed, figures=f"{clients.consumed:,} consumed"
            )
            held = sum(check.held for check in demo_run.checks)
            self._progress.update(checks, completed=len(demo_run.checks), figures=f"{held} of {CHECKS} held")
            await trio.sleep(PROGRESS_INTERVAL_S)


async def _run_until_signal(plan: Plan, demo_run: DemoRun, progress: _ProgressLog) -> int | None:
    """Run the demo; the number of the signal that ended it early, if any."""
    ended_by = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:

            async def stop_on_signal() -> None:
                nonlocal ended_by
                async for number in signals:
                    ended_by = number
                    nursery.cancel_scope.cancel()

            nursery.start_soon(stop_on_signal)
            nursery.start_soon(progress.run, demo_run)
            await run_demo(plan, demo_run)
            nursery.cancel_scope.cancel()
    return ended_by


def _print_summary(plan: Plan, demo_run: DemoRun, kept: Path | None) -> None:
    puts = Table("puts", box=None)
    statuses = sorted(demo_run.statuses, key=lambda status: -demo_run.statuses[status])
    for status in statuses:
        puts.add_column(status, justify="right")
    puts.add_column("p99 ms", justify="right")
    for act, result in demo_run.puts.items():
        counts = (f"{result.statuses.get(status, 0):,}" for status in statuses)
        puts.add_row(f"{act} the slave's absence", *counts, f"{result.latency_ms.get('p99', 0):,.1f}")
    out().print(puts)
    out().print()
    checks = Table("check", "", "seen", box=None)
    for check in demo_run.checks:
        verdict = Text("\N{BALLOT X} FAILED", f"bold {BAD.terminal}")
        if check.held:
            verdict = Text("\N{CHECK MARK} held", GOOD.terminal)
        checks.add_row(check.name, verdict, check.seen)
    out().print(checks)
    out().print()
    out().print(f"producer and consumer: {demo_run.clients_name}")
    out().print(f"report: {plan.report}", soft_wrap=True)
    if kept is not None:
        out().print(f"stores, sessions and logs: {kept}", soft_wrap=True)
    held = sum(check.held for check in demo_run.checks)
    out().print(
        f"{held} of {len(demo_run.checks)} checks held",
        style=f"bold {(GOOD if demo_run.all_held else BAD).terminal}",
    )


def _to_json(plan: Plan, demo_run: DemoRun, kept: Path | None) -> dict[str, object]:
    return {
        "ok": demo_run.all_held,
        "checks": [{"name": check.name, "held": check.held, "seen": check.seen} for check in demo_run.checks],
        "puts": {act: result.to_json() for act, result in demo_run.puts.items()},
        "clients": {"name": demo_run.clients_name, **demo_run.clients.to_json()},
        "report": str(plan.report),
        "folder": None if kept is None else str(kept),
    }
