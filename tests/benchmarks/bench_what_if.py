"""What `trioha what-if` predicts, against what happens: real nodes with the settings it was asked.

For each question nodes with the base settings and nodes with the changed ones run side by side, and are put
to in turn. The model is fitted to the sessions of the first and predicts the second; compared are p50 and p99
of put latency (from a put's append to the end of its wait, as sessions have them). Of several turns those
count that other processes disturbed least.

Every node, and `trioha load`, is a process of its own. Slaves dial their master through a link of the
fault tests' proxy, with base settings too, so that only the changed link differs; the model is given
the round trip that the link was measured to have.

Run it with `make bench` or `python tests/benchmarks/bench_what_if.py [--only NAME] [--json]`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self

import trio
from attrs import evolve, field, frozen
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.rivals.machine import LoadMeter
from tests.faults.proxy import Link
from tests.interop.node import TriohaNode
from trioha.config.model import AckMode
from trioha.recording.reader import Session
from trioha.recording.records import read_records
from trioha_analysis.whatif.answer import combine_repeats
from trioha_analysis.whatif.figures import Figures, figures, outcome_of
from trioha_analysis.whatif.model import Model, find_model_sessions, model_of, play
from trioha_analysis.whatif.scenario import Scenario
from trioha_analysis.whatif.trace import Trace, trace_of

REPEATS = 5
TURNS = 8
COUNTED = 3
"""Of so many turns the calmest count."""
DISTURBED_CORES = 0.25
"""Cores that others kept busy during a turn that is not calm."""
GOAL = 0.25
PINGS = 60
NODES = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "haSendHeartbeatInterval": 5000,
    "trioha.haDistinctBy": "connection",
}


@frozen
class Setup:
    """How nodes and producers run."""

    slaves: int = 1
    writers: int = 8
    rate: float | None = None
    puts: int = 8000
    master: dict[str, object] = field(factory=dict)
    """Settings of the master."""
    slave: dict[str, object] = field(factory=dict)
    """And of its slaves."""
    rtt_s: float = 0.0
    bytes_per_s: float = 0.0
    """Of each link, 0 for as fast as it goes."""


@frozen
class Question:
    """A change, as it is made for real and as the model is asked."""

    name: str
    base: Setup
    real: Setup
    asked: dict[str, Any]
    """Fields of `Scenario`."""


PACED = Setup(slaves=2, writers=256, rate=400.0, puts=1200)
SYNCED = Setup(writers=256, rate=200.0, puts=600, master={"flushDiskType": "SYNC_FLUSH"})
LOOP = Setup(slaves=1, writers=8, puts=6000)
QUESTIONS = [
    Question(
        "inSyncReplicas=3",
        PACED,
        evolve(PACED, master={"inSyncReplicas": 3}),
        {"in_sync_replicas": 3},
    ),
    Question("--rate 800", PACED, evolve(PACED, rate=800.0, puts=2400), {"rate_per_s": 800.0}),
    Question("--rtt 5ms", PACED, evolve(PACED, rtt_s=0.005), {"rtt_s": 0.005}),
    Question(
        "trioha.haAckMode=flushed",
        SYNCED,
        evolve(SYNCED, slave={"trioha.haAckMode": "flushed"}),
        {"ack_mode": AckMode.FLUSHED},
    ),
    Question("--rtt 10ms", LOOP, evolve(LOOP, rtt_s=0.01, puts=1500), {"rtt_s": 0.01}),
    Question(
        "--bandwidth 500k", LOOP, evolve(LOOP, bytes_per_s=5e5, puts=1200), {"bandwidth_bytes_per_s": 5e5}
    ),
    Question("--writers 24", LOOP, evolve(LOOP, writers=24), {"writers": 24}),
    Question(
        "haTransferBatchSize=2048",
        LOOP,
        evolve(LOOP, master={"haTransferBatchSize": 2048}),
        {"transfer_batch_bytes": 2048},
    ),
]


class Links:
    """Links of the proxy, in a trio thread of their own."""

    def __init__(self, count: int) -> None:
        self.links = [Link(seed=index) for index in range(count)]
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), name="links", daemon=True)

    async def _serve(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                for link in self.links:
                    await nursery.start(link.serve)
                self._token = trio.lowlevel.current_trio_token()
                self._ready.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the links do not serve"
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._scope.cancel)
        self._thread.combine_repeats(10)

    def _call(self, function: Callable[[], None]) -> None:
        trio.from_thread.run_sync(function, trio_token=self._token)

    def lead_to(self, port: int) -> None:
        """Connect each accepted client to this port."""
        for link in self.links:
            self._call(partial(setattr, link, "target", ("127.0.0.1", port)))

    def slow(self, setup: Setup) -> None:
        """Be as fast as `setup` says."""
        for link in self.links:
            self._call(partial(link.slow, latency_s=setup.rtt_s / 2, bytes_per_s=setup.bytes_per_s))


def ping_s(setup: Setup) -> float:
    """Measured round trip of 8 bytes on a link of `setup`: the proxy adds more than its setting."""

    async def measure() -> float:
        link = Link()
        took_s = []
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(partial(trio.serve_listeners, echo, listeners))
            await nursery.start(link.serve)
            link.target = ("127.0.0.1", listeners[0].socket.getsockname()[1])
            async with await trio.open_tcp_stream("127.0.0.1", link.port) as stream:
                for latency_s, bytes_per_s in ((0.0, 0.0), (setup.rtt_s / 2, setup.bytes_per_s)):
                    link.slow(latency_s=latency_s, bytes_per_s=bytes_per_s)
                    times_s = []
                    for _ in range(PINGS):
                        began_s = time.perf_counter()
                        await stream.send_all(bytes(8))
                        await stream.receive_some(8)
                        times_s.append(time.perf_counter() - began_s)
                    took_s.append(statistics.median(times_s))
            nursery.cancel_scope.cancel()
        return took_s[1] - took_s[0]

    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    return trio.run(measure)


class Running:
    """Nodes of `setup` that run, and what was put to them."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self._setup = setup
        self._folder = folder
        self._recordings = folder / "recordings"
        self._nodes: list[TriohaNode] = []
        self._links = Links(setup.slaves)
        self._loads: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        setup = self._setup
        self._links.__enter__()
        try:
            settings = {**NODES, "trioha.recordDir": self._recordings, **setup.master}
            master = TriohaNode(self._folder / "master", role="SYNC_MASTER", **settings)
            self._nodes.append(master)
            self._links.lead_to(master.ha_port)
            for index, link in enumerate(self._links.links):
                settings = {**NODES, "trioha.recordDir": self._recordings, **setup.slave}
                name = self._folder / f"slave-{index + 1}"
                slave = TriohaNode(
                    name, role="SLAVE", ha_master_address=link.address, **{**settings, "brokerId": index + 1}
                )
                self._nodes.append(slave)
            master.wait(connections=setup.slaves)
            load(master, writers=1, puts=20)
            self._links.slow(setup)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.stop()
        self._links.__exit__()

    @property
    def pids(self) -> list[int]:
        """Of the nodes."""
        return [node.pid for node in self._nodes]

    def load(self) -> None:
        """Put to them as `setup` says."""
        setup = self._setup
        began_ns = time.monotonic_ns()
        load(self._nodes[0], writers=setup.writers, puts=setup.puts, rate=setup.rate)
        self._loads.append((began_ns, time.monotonic_ns()))

    def recorded(self, loads: Iterable[int]) -> tuple[Session, list[Session], list[Trace]]:
        """The sessions, and the stretches of these loads in the master's. For nodes that have ended."""
        master, slaves = find_model_sessions([self._recordings])
        records = read_records(master).array
        ts_ns = records["ts_ns"]
        windows = [self._loads[index] for index in loads]
        return master, slaves, [trace_of(records[(ts_ns >= a) & (ts_ns <= b)]) for a, b in windows]


def load(master: TriohaNode, *, writers: int, puts: int, rate: float | None = None) -> None:
    """`trioha load` on `master`, to its end."""
    options = [] if rate is None else ["--rate", str(rate)]
    subprocess.run(
        [
            *(sys.executable, "-m", "trioha", "load", "--json", "--broker", master.listen_address),
            *("--count", str(puts), "--concurrency", str(writers), *options),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=120,
    )


@frozen
class Answer:
    """Of one question."""

    base_predicted: Figures
    base_real: Figures
    predicted: Figures
    real: Figures
    others_cores: float
    """Kept busy by others during the worst turn that counts."""


def ask(question: Question, folder: Path) -> Answer:
    """Run base and change in turn, and predict the one from the other."""
    turns: list[float] = []
    with Running(question.base, folder / "base") as base, Running(question.real, folder / "real") as real:
        while len(turns) < TURNS and sum(cores <= DISTURBED_CORES for cores in turns) < COUNTED:
            with LoadMeter() as meter:
                meter.count([*base.pids, *real.pids])
                base.load()
                real.load()
            turns.append(meter.load.others_cores or 0.0)
    calm = sorted(range(len(turns)), key=turns.__getitem__)[:COUNTED]
    master, slaves, traces = base.recorded(calm)
    model = model_of(master, slaves, traces=traces)
    asked = evolve(model.scenario, **question.asked)
    if question.real.rtt_s or question.real.bytes_per_s:
        asked = evolve(asked, rtt_s=ping_s(question.real))
    return Answer(
        base_predicted=predicted(model, model.scenario),
        base_real=measured(traces),
        predicted=predicted(model, asked),
        real=measured(real.recorded(calm)[2]),
        others_cores=turns[calm[-1]],
    )


def predicted(model: Model, scenario: Scenario) -> Figures:
    """As the command computes them."""
    return combine_repeats([figures([play(model, scenario, repeat=repeat)]) for repeat in range(REPEATS)])


def measured(traces: Iterable[Trace]) -> Figures:
    """Of all these loads together, as the model takes them."""
    return figures([outcome_of(trace) for trace in traces])


def row(question: Question, answer: Answer) -> dict[str, Any]:
    """For machines."""
    found: dict[str, Any] = {"setting": question.name, "othersCores": answer.others_cores}
    for part in ("p50", "p99"):
        for name, ours, theirs in (
            (part, answer.predicted, answer.real),
            (f"{part}Base", answer.base_predicted, answer.base_real),
        ):
            assert ours.latency_ms is not None
            assert theirs.latency_ms is not None
            predicted_ms, measured_ms = ours.latency_ms[part], theirs.latency_ms[part]
            found[name] = {
                "predictedMs": predicted_ms,
                "measuredMs": measured_ms,
                "error": predicted_ms / measured_ms - 1,
            }
    return found


def table(rows: list[dict[str, Any]]) -> Table:
    """For a terminal."""
    shown = Table(title="put latency, ms: base settings and changed ones, predicted and measured")
    shown.add_column("setting")
    for part in ("p50", "p99"):
        for name in ("base", "predicted", "measured", "error"):
            shown.add_column(f"{part} {name}", justify="right")
    shown.add_column("error of base p50, p99", justify="right")
    shown.add_column("others", justify="right")
    for one in rows:
        cells = []
        for part in ("p50", "p99"):
            value = one[part]
            mark = "" if abs(value["error"]) <= GOAL else " !"
            cells += [
                f"{one[f'{part}Base']['measuredMs']:.2f}",
                f"{value['predictedMs']:.2f}",
                f"{value['measuredMs']:.2f}",
                f"{value['error']:+.0%}{mark}",
            ]
        base = ", ".join(f"{one[f'{part}Base']['error']:+.0%}" for part in ("p50", "p99"))
        shown.add_row(one["setting"], *cells, base, f"{one['othersCores']:.2f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", action="append", help="questions whose names contain this")
    options = parser.parse_args()
    rows = []
    for question in QUESTIONS:
        if not options.only or any(part in question.name for part in options.only):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(row(question, ask(question, Path(folder))))
            print(f"{len(rows)}: {json.dumps(rows[-1])}", file=sys.stderr)
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "rows": rows}))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(rows))


if __name__ == "__main__":
    main()
