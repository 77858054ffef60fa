"""Runs one seed of a simulated world, from its own process or from the command line."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import trio
from attrs import frozen
from trio.testing import MockClock

from tests.descriptors import left_open, open_descriptors
from tests.simulation.determinism import pinned, stream_of
from tests.simulation.network import LinkQuality
from tests.simulation.trace import Trace
from trioha.net.descriptors import raise_descriptor_limit

CHECK_INTERVAL_S = 0.5
GOOD_LINK = LinkQuality(latency_s=0.001, bandwidth_bytes_per_s=1e8, capacity_bytes=1 << 20, dribble=0.0)
TRACE_LINES_MAX = 500_000
STEPS_AT_ONCE_MAX = 200_000


class SimulationError(AssertionError):
    """An invariant did not hold; the message has the first one, the seed, and how to see it again."""

    def __init__(self, message: str, violations: list[str]) -> None:
        super().__init__(message)
        self.violations = violations


@frozen
class Outcome:
    """What one run did."""

    seed: int
    digest: str
    """Of all that happened: equal for equal seeds."""
    events: int
    virtual_s: float
    counts: Mapping[str, int]
    """What there was how often, puts by their status among it."""


class SimulatedWorld(ABC):
    """One seed's nodes, links and faults."""

    COMMAND: ClassVar[str]
    """The program that runs seeds of this kind."""

    def __init__(self, plan: Any, *, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.violations: list[str] = []
        self.virtual_s = 0.0
        self.faults = 0
        self.nursery: trio.Nursery
        """For what outlives a node."""
        self._rng = stream_of(plan.seed, "faults")
        self._scope = trio.CancelScope()

    def fail(self, what: str) -> None:
        """An invariant does not hold: the run ends as soon as this returns to trio."""
        self.violations.append(f"at {trio.current_time():.6f} s {what}")
        self._scope.cancel()

    def logged(self, what: str) -> None:
        self.fail(what)

    def surroundings(self) -> AbstractContextManager[object]:
        return nullcontext()

    async def run(self) -> None:
        with self._scope:
            async with trio.open_nursery() as self.nursery:
                self._start()
                self.nursery.start_soon(self._check_for_ever)
                with trio.move_on_after(self.plan.chaos_s):
                    await self._break_things()
                await self._end_well()
                self.nursery.cancel_scope.cancel()
        self.virtual_s = trio.current_time()
        if not self.violations:
            self._check_end()

    @abstractmethod
    def _start(self) -> None:
        """Start everything in the nursery."""

    @abstractmethod
    def _break(self, fault: Any) -> None:
        """Let one fault of the plan happen."""

    @abstractmethod
    def _check_now(self) -> None:
        """What must hold at any time."""

    @abstractmethod
    async def _end_well(self) -> None:
        """No more faults: after bounded time all is well."""

    @abstractmethod
    def _check_end(self) -> None:
        """What must hold when everything has ended."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """For the outcome."""

    async def _break_things(self) -> None:
        while True:
            await trio.sleep(self._rng.expovariate(1 / self.plan.fault_interval_s))
            fault = self._rng.choice(self.plan.faults)
            self.faults += 1
            self._check_now()
            self._break(fault)

    async def _check_for_ever(self) -> None:
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            self._check_now()
            if self.trace.count > TRACE_LINES_MAX:
                self.fail(f"more than {TRACE_LINES_MAX} events: something runs in circles")

    async def _until(self, reason_against: Callable[[], str], bound_s: float) -> None:
        """Wait until there is no reason any more why all is not well."""
        deadline_s = trio.current_time() + bound_s
        while reason := reason_against():
            if trio.current_time() > deadline_s:
                self.fail(f"after {bound_s:.0f} s without faults {reason}")
                await trio.sleep_forever()
            await trio.sleep(CHECK_INTERVAL_S)


def run_world(
    make_world: Callable[[Path, Trace], SimulatedWorld],
    seed: int,
    *,
    show: Callable[[str], None] | None = None,
    options: str = "",
) -> Outcome:
    """Run one seed; raises SimulationError where an invariant does not hold. `show` gets every trace line.

    `options` are those of the command that make this plan of the seed.
    """
    before = open_descriptors()
    with (
        _limit_raised(),
        _collector_off(),
        tempfile.TemporaryDirectory(prefix="simulation-", dir=memory_folder()) as folder,
    ):
        trace = Trace(show)
        world = make_world(Path(folder).resolve(), trace)
        with pinned(seed, on_log_fault=world.logged), world.surroundings():
            try:
                trio.run(
                    world.run, clock=MockClock(autojump_threshold=0), instruments=[SpinGuard(world.fail)]
                )
            except Exception:  # noqa: BLE001 - any exception is a finding of this seed
                world.violations.append(f"exception:\n{traceback.format_exc()}")
        if not world.violations and (left := left_open(before)):
            world.violations.append(f"left open: {', '.join(left)}")
    if world.violations:
        raise SimulationError(
            f"seed {seed}: {world.violations[0]}\n"
            f"last of {trace.count} events:\n{trace.last_lines()}\n"
            f"seed {seed}: {world.violations[0]}\n"
            f"see it again: python -m {world.COMMAND} --seed {seed} --trace {options}".rstrip(),
            world.violations,
        )
    return Outcome(seed, trace.digest, trace.count, world.virtual_s, world.counts())


def memory_folder() -> str | None:
    """Where files cost no disk time, if there is such a place."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and os.access(folder, os.W_OK) else None


@contextmanager
def _limit_raised() -> Iterator[None]:
    """As many descriptors as a node has after its start: here several nodes share them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Nothing is closed by a garbage collection that happens to come in time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class SpinGuard(trio.abc.Instrument):
    """Ends a run in which tasks go round without time passing: virtual time would stand still for ever."""

    def __init__(self, on_violation: Callable[[str], None]) -> None:
        self._fail = on_violation
        self._now_s = -1.0
        self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now_s = trio.current_time()
        if now_s != self._now_s:
            self._now_s, self._steps = now_s, 0
        self._steps += 1
        if self._steps == STEPS_AT_ONCE_MAX:
            self._fail(f"{STEPS_AT_ONCE_MAX} steps of tasks at one moment, the last of {task.name}")


@frozen
class _Run:
    """One seed of the command line, in its own process or another."""

    outcome: Outcome | None
    """None if an invariant did not hold."""
    said: str
    """What did not hold."""
    cpu_s: float


def _run_seed(seed: int, *, make_plan: Callable[[int], Any], simulate: Callable[..., Outcome]) -> _Run:
    started_s = time.process_time()
    outcome, said = None, ""
    try:
        outcome = simulate(seed, plan=make_plan(seed))
    except SimulationError as error:
        said = str(error)
    return _Run(outcome, said, time.process_time() - started_s)


@contextmanager
def _runs(run: Callable[[int], _Run], seeds: Sequence[int], *, jobs: int) -> Iterator[Iterable[_Run]]:
    """The runs of the seeds, in their order, `jobs` at a time."""
    if jobs == 1:
        yield map(run, seeds)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool.map(run, seeds)
    finally:
        pool.shutdown(cancel_futures=True)


def run_command(
    command: str,
    *,
    plans: Mapping[str, tuple[Callable[[int], Any], str]],
    simulate: Callable[..., Outcome],
) -> int:
    """The command line `python -m COMMAND --seed N [--count M] [--trace]`; 1 if an invariant did not hold.

    `plans`: by option what makes the plan of a seed, and what is special about it; without option the first.
    They and `simulate` are functions of modules, for other processes.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description="Run simulated seeds.")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="seeds at a time; by default one a core"
    )
    parser.add_argument("--trace", action="store_true", help="print the plan and every event")
    default, *others = plans
    for option in others:
        parser.add_argument(
            f"--{option}", dest="plan", action="store_const", const=option, default=default,
            help=plans[option][1],
        )  # fmt: skip
    parser.set_defaults(plan=default)
    arguments = parser.parse_args()
    if arguments.count < 1 or arguments.jobs < 1:
        parser.error("--count and --jobs are at least 1")
    make_plan, _ = plans[arguments.plan]
    if arguments.trace:
        simulate = partial(_traced, simulate)
    run = partial(_run_seed, make_plan=make_plan, simulate=simulate)
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    jobs = 1 if arguments.trace else min(arguments.jobs, arguments.count)
    counts: Counter[str] = Counter()
    failed, cpu_s = 0, 0.0
    with _runs(run, seeds, jobs=jobs) as found:
        for seed, ended in zip(seeds, found, strict=True):
            cpu_s += ended.cpu_s
            outcome = ended.outcome
            if outcome is None:
                failed += 1
                print(
                    ended.said if arguments.count == 1 else ended.said.partition("\nlast of")[0], flush=True
                )
                continue
            counts.update(outcome.counts)
            if arguments.count <= 100 or seed % 100 == 0:
                print(
                    f"seed {seed}: ok, {outcome.virtual_s:.1f} virtual s in {ended.cpu_s:.2f} s, "
                    f"{outcome.events} events, {_text(outcome.counts)}, trace {outcome.digest[:12]}",
                    flush=True,
                )
    passed = arguments.count - failed
    print(f"{passed} of {arguments.count} seeds passed: {_text(counts)}, {cpu_s:.0f} s of CPU")
    return 1 if failed else 0


def _traced(simulate: Callable[..., Outcome], seed: int, *, plan: Any) -> Outcome:
    print(plan)
    return simulate(seed, show=print, plan=plan)


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items())
