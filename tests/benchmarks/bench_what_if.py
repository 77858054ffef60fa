"""What `trioha what-if` predicts, against what happens: real nodes with the settings it was asked.

Each setting is recorded several times, in rounds: one recording of every setting after the other, so that
changes of the machine over time concern all of them. Each recording has new processes: nodes, `trioha load`,
and the links between slaves and master (`even_link.py`). For each question the model is fitted to each
recording of the base settings and predicts the changed ones, of which it sees nothing. Compared are medians
over the recordings of p50 and p99 of put latency (from a put's append to the end of its wait, as sessions
have them).

`range` is that which the answer has beside it: medians of its ends.

`noise` is how far two recordings of one setting differ: the median, over all pairs of them, of the larger
over the smaller less one. Where it exceeds the goal, the error cannot be smaller either, but by chance.

Questions are those of the table in docs/session-analysis.md; `--set others` asks about other settings and
loads. The model has no constant that comes from either.

It prints the table of docs/session-analysis.md:

    python tests/benchmarks/bench_what_if.py [--set readme|others] [--only NAME] [--recordings 5]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from attrs import evolve, field, frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.even_link import EvenLink, round_trip_s
from tests.node_process import TriohaNode
from trioha.config.keys.ha import AckMode
from trioha_analysis.whatif.model import Answer, Model, find_model_sessions, model_of, predict
from trioha_analysis.whatif.scenario import Point
from trioha_sessions.records import read_records

RECORDINGS: Final = 5
"""Of each setting."""
WARM_UP_PUTS: Final = 300
GOAL: Final = 0.25
PARTS: Final = ("p50", "p99")
NODES: Final = {
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
    master: Mapping[str, object] = field(factory=dict)
    """Settings of the master."""
    slave: Mapping[str, object] = field(factory=dict)
    """And of its slaves."""
    rtt_s: float = 0.0
    bytes_per_s: float = 0.0
    """Of each link, 0 for as fast as it goes."""


@frozen
class Question:
    """A change, as it is made for real and as the model is asked."""

    name: str
    base: str
    """Name of the recorded settings."""
    real: Setup
    asked: Mapping[str, Any]
    """Fields of `Scenario`."""


PACED = Setup(slaves=2, writers=256, rate=400.0, puts=1200)
LOOP = Setup(slaves=1, writers=8, puts=8000)
BASES: Final = {
    "400 puts/s, 2 slaves": PACED,
    "200 puts/s, SYNC_FLUSH": Setup(
        writers=256, rate=200.0, puts=600, master={"flushDiskType": "SYNC_FLUSH"}
    ),
    "8 writers": LOOP,
    "250 puts/s, 2 slaves": evolve(PACED, rate=250.0, puts=750),
    "4 writers": evolve(LOOP, writers=4, puts=5000),
}


def questions_about(base: str, *asked: tuple[str, Mapping[str, Any], Mapping[str, Any]]) -> list[Question]:
    """Questions about a base: the option, the fields of `Scenario`, and the changes of `Setup`."""
    return [Question(name, base, evolve(BASES[base], **changes), fields) for name, fields, changes in asked]


SETS: Final = {
    "readme": [
        *questions_about(
            "400 puts/s, 2 slaves",
            ("inSyncReplicas=3", {"in_sync_replicas": 3}, {"master": {"inSyncReplicas": 3}}),
            ("--rate 800", {"rate_per_s": 800.0}, {"rate": 800.0, "puts": 2400}),
            ("--rtt 5ms", {"rtt_s": 0.005}, {"rtt_s": 0.005}),
        ),
        *questions_about(
            "200 puts/s, SYNC_FLUSH",
            (
                "trioha.haAckMode=flushed",
                {"ack_mode": AckMode.FLUSHED},
                {"slave": {"trioha.haAckMode": "flushed"}},
            ),
        ),
        *questions_about(
            "8 writers",
            ("--rtt 10ms", {"rtt_s": 0.01}, {"rtt_s": 0.01, "puts": 1500}),
            ("--bandwidth 500k", {"bandwidth_bytes_per_s": 5e5}, {"bytes_per_s": 5e5, "puts": 1200}),
            ("--writers 24", {"writers": 24}, {"writers": 24}),
            (
                "haTransferBatchSize=2048",
                {"transfer_batch_bytes": 2048},
                {"master": {"haTransferBatchSize": 2048}},
            ),
        ),
    ],
    "others": [
        *questions_about(
            "250 puts/s, 2 slaves",
            ("inSyncReplicas=3", {"in_sync_replicas": 3}, {"master": {"inSyncReplicas": 3}}),
            ("--rate 600", {"rate_per_s": 600.0}, {"rate": 600.0, "puts": 1800}),
            ("--rtt 2ms", {"rtt_s": 0.002}, {"rtt_s": 0.002}),
        ),
        *questions_about(
            "4 writers",
            ("--rtt 3ms", {"rtt_s": 0.003}, {"rtt_s": 0.003, "puts": 2500}),
            ("--bandwidth 1M", {"bandwidth_bytes_per_s": 1e6}, {"bytes_per_s": 1e6, "puts": 2000}),
            ("--writers 16", {"writers": 16}, {"writers": 16, "puts": 8000}),
            (
                "haTransferBatchSize=1024",
                {"transfer_batch_bytes": 1024},
                {"master": {"haTransferBatchSize": 1024}},
            ),
        ),
    ],
}


# -- recordings ----------------------------------------------------------------------------------------------


@frozen
class Recording:
    """One recording of a setting."""

    folder: Path
    """Of its sessions."""
    window_ns: tuple[int, int]
    """Of the load, by the monotonic clock."""

    def model(self) -> Model:
        """Of the load alone."""
        master, slaves = find_model_sessions([self.folder])
        records = read_records(master).array
        low, high = self.window_ns
        of_load = records[(records["ts_ns"] >= low) & (records["ts_ns"] <= high)]
        return model_of(master, slaves, windows=[of_load])


def record(setup: Setup, folder: Path) -> Recording:
    """Record `setup` with processes of its own; only the sessions stay."""
    recordings = folder / "recordings"
    common = {**NODES, "trioha.recordDir": recordings}
    nodes: list[TriohaNode] = []
    with ExitStack() as stack:
        master = TriohaNode(folder / "master", role="SYNC_MASTER", **common, **setup.master)
        nodes.append(master)
        stack.callback(master.stop)
        links = [stack.enter_context(EvenLink()) for _ in range(setup.slaves)]
        for index, link in enumerate(links):
            link.lead_to(master.ha_port)
            slave = TriohaNode(
                folder / f"slave-{index + 1}",
                role="SLAVE",
                ha_master_address=link.address,
                **{**common, **setup.slave, "brokerId": index + 1},
            )
            nodes.append(slave)
            stack.callback(slave.stop)
        master.wait(connections=setup.slaves)
        load(master, writers=min(setup.writers, 16), puts=WARM_UP_PUTS, rate=None)
        for link in links:
            link.slow(latency_s=setup.rtt_s / 2, bytes_per_s=setup.bytes_per_s)
        began_ns = time.monotonic_ns()
        load(master, writers=setup.writers, puts=setup.puts, rate=setup.rate)
        window_ns = began_ns, time.monotonic_ns()
    for node in nodes:
        shutil.rmtree(node.root)
    return Recording(recordings, window_ns)


def load(master: TriohaNode, *, writers: int, puts: int, rate: float | None) -> None:
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


# -- predictions ---------------------------------------------------------------------------------------------


def answered(recording: Recording, asked: Sequence[Mapping[str, Any]]) -> Answer:
    """Predictions of the changes asked, as the command computes them."""
    model = recording.model()
    return predict(model, [Point("", evolve(model.scenario, **changes)) for changes in asked])


def measured_ms(recordings: Iterable[Recording], part: str) -> list[float]:
    """That percentile of put latency of each, computed as the model computes it."""
    found = [one.model().recorded.latency_ms for one in recordings]
    return [one[part] for one in found if one is not None]


def noise(values: Sequence[float]) -> float:
    """How far two of the values differ, as a share: the median over all pairs."""
    if len(values) < 2:
        return 0.0
    return statistics.median(max(pair) / min(pair) - 1 for pair in combinations(values, 2))


def cells(asked: Question, answers: Sequence[Answer], place: int, real: Sequence[Recording]) -> list[str]:
    """The row of one question: the prediction at `place` of each answer, and what was measured. Errors beyond
    the goal are bold, and so are ranges without what was measured."""
    row, as_recorded = [f"`{asked.name}`", asked.base], []
    for part in PARTS:
        real_ms = statistics.median(measured := measured_ms(real, part))
        base_ms, played_ms, found_ms, low_ms, high_ms = (
            statistics.median(values)
            for values in zip(*(latencies(one, place, part) for one in answers), strict=True)
        )
        error = found_ms / real_ms - 1
        span = f"{low_ms:.2f} to {high_ms:.2f}"
        row += [f"{base_ms:.2f}", f"{found_ms:.2f}"]
        row += [span if low_ms <= real_ms <= high_ms else f"**{span}**", f"{real_ms:.2f}"]
        row += [percent(error) if abs(error) <= GOAL else f"**{percent(error)}**", f"{noise(measured):.0%}"]
        as_recorded.append(percent(played_ms / base_ms - 1))
    return [*row, ", ".join(as_recorded)]


def latencies(answer: Answer, place: int, part: str) -> tuple[float, float, float, float, float]:
    """A percentile in ms: recorded, predicted as recorded, predicted, and its range."""
    found, recorded = answer.predictions[place], answer.model.recorded.latency_ms
    played, predicted, span = (
        answer.as_recorded.figures.latency_ms,
        found.figures.latency_ms,
        found.latency_range_ms,
    )
    assert recorded is not None
    assert played is not None
    assert predicted is not None
    assert span is not None
    return recorded[part], played[part], predicted[part], *span[part]


def percent(value: float) -> str:
    """With a sign."""
    return f"{value:+.0%}".replace("-", MINUS)


MINUS: Final = "\N{MINUS SIGN}"
COLUMNS: Final = ("recorded", "predicted", "range", "measured", "error", "noise")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The table."""
    names = [f"{part} {name}" for part in PARTS for name in COLUMNS]
    heading = ["asked", "recorded settings", *names, "as recorded: p50, p99"]
    lines = [heading, ["---", "---", *["--:"] * len(names), "---"], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# -- the program ---------------------------------------------------------------------------------------------


def remember(folder: Path, kept: Mapping[str, list[Recording]]) -> None:
    """Write what `--from` reads."""
    found = {
        name: [
            {
                "folder": str(one.folder.relative_to(folder)),
                "windowNs": one.window_ns,
            }
            for one in recordings
        ]
        for name, recordings in kept.items()
    }
    (folder / "recordings.json").write_text(json.dumps(found, indent=1))


def remembered(folder: Path) -> dict[str, list[Recording]]:
    """What `remember` wrote."""
    found = json.loads((folder / "recordings.json").read_text())
    return {
        name: [Recording(folder / one["folder"], tuple(one["windowNs"])) for one in recordings]
        for name, recordings in found.items()
    }


def record_all(questions: Sequence[Question], folder: Path, *, count: int) -> dict[str, list[Recording]]:
    """`count` rounds of recordings of each setting, by base or question."""
    setups = {one.base: BASES[one.base] for one in questions}
    setups |= {key(one): one.real for one in questions}
    kept: dict[str, list[Recording]] = {name: [] for name in setups}
    for turn in range(count):
        for index, (name, setup) in enumerate(setups.items()):
            began_s = time.monotonic()
            kept[name].append(record(setup, folder / f"{index:02d}-{turn}"))
            remember(folder, kept)
            print(f"{turn}: {name}: {time.monotonic() - began_s:.1f} s", file=sys.stderr)
    return kept


def key(asked: Question) -> str:
    """Names the recordings of a question."""
    return f"{asked.name} of {asked.base}"


def answers(questions: Sequence[Question], kept: Mapping[str, list[Recording]]) -> list[list[str]]:
    """The rows of all questions."""
    speeds = {setup_speed(one.real) for one in questions if one.real.rtt_s or one.real.bytes_per_s}
    measured_rtt_s = {speed: round_trip_s(latency_s=speed[0], bytes_per_s=speed[1]) for speed in speeds}

    def asked_of(one: Question) -> dict[str, Any]:
        speed = setup_speed(one.real)
        return {**one.asked, "rtt_s": measured_rtt_s[speed]} if speed in measured_rtt_s else dict(one.asked)

    rows = []
    for base in dict.fromkeys(one.base for one in questions):
        of_base = [one for one in questions if one.base == base]
        found = [answered(recording, [asked_of(one) for one in of_base]) for recording in kept[base]]
        rows += [cells(one, found, place, kept[key(one)]) for place, one in enumerate(of_base)]
    return rows


def setup_speed(setup: Setup) -> tuple[float, float]:
    """Latency and bandwidth of its links."""
    return setup.rtt_s / 2, setup.bytes_per_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", choices=sorted(SETS), default="readme")
    parser.add_argument("--only", action="append", help="questions whose names contain this")
    parser.add_argument("--recordings", type=int, default=RECORDINGS, help="of each setting")
    parser.add_argument("--keep", type=Path, help="leave the recordings in this new folder")
    parser.add_argument(
        "--from", dest="sources", type=Path, action="append", help="use recordings that --keep has left"
    )
    options = parser.parse_args()
    questions = [
        one for one in SETS[options.set] if not options.only or any(part in one.name for part in options.only)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        if options.sources:
            every = [remembered(source) for source in options.sources]
            kept = {name: [one for found in every for one in found[name]] for name in every[0]}
        else:
            folder = Path(scratch) if options.keep is None else options.keep
            folder.mkdir(parents=True, exist_ok=True)
            kept = record_all(questions, folder, count=options.recordings)
        print(markdown(answers(questions, kept)))


if __name__ == "__main__":
    main()
