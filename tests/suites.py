"""Run suites side by side: the fast ones on every Python of this machine, with `--all` the slow ones, too.

`make test-pythons` runs the fast suites: all tests but interop and spark, whose time is the JVM's, faults and
hostile, which break live nodes for minutes, and benchmarks. They run on every Python of `tests.pythons`, each
with a virtual environment of its own (`.venv-3.12`). The soft limit of open files is 256, as macOS has it;
nodes that are started may raise it. They need no Java.

`make test-all` adds the slow suites, on the Python of `.venv`: every test, the fast ones on each Python.

Several jobs run at once, one more than the machine has cores, since tests wait for processes a third of their
time. Each is one process of pytest. Its lines are printed with its name, but not those of dots.

One Python's fast suites run without the compiled kernel, with `TRIOHA_PURE=1`. With `--all` that is not the
Python of `.venv`; where there is no other, the fast suites run there both ways. Without `--all` it is that of
`.venv`, since `make test` runs them compiled there. The other Pythons compile the kernel if they find a
compiler. Each job's line says how its kernel ran.

Whatever failed is named once more in the table at the end. Tests that failed run again, alone, when all else
has ended: most start processes and JVMs, whose clocks go on while other suites have the cores. If no more
than `FORGIVEN` tests of the whole run failed, and each passes `RUNS_ALONE` times then, their jobs have
passed. What they printed when they failed stands above, and is to be looked into all the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice

from attrs import evolve, field, frozen

from tests.pythons import ROOT, Python, environment_of, find_pythons, make_environment, usual_python
from trioha.store.compiled import PURE_VARIABLE

ALL = "--all"
SLOW = ("benchmarks", "faults", "hostile", "interop", "spark")
"""Folders that do not belong to the fast suites."""
MARKS = "spark or interop"
"""Of slow tests in other folders."""
FAST = {"nodes": ("cli", "node", "simulation"), "screens": ("analysis", "monitor", "mutations")}
"""Folders of the fast suites by job; all others are a job, too. Each takes about as long."""
OPEN_FILES = 256
"""Soft limit for the fast suites, as macOS has it."""
KERNEL = "from trioha.store import compiled; print(compiled.DESCRIPTION)"
DOTS = re.compile(r"[.sx]+ +\[ *\d+%\]")
"""A line of progress in which nothing failed."""
NOTHING_TO_RUN = 5
"""Pytest's exit code if no test is selected."""
TESTS_FAILED = 1
"""Pytest's exit code if all tests ran and some failed."""
FAILURE = re.compile(r"(?:FAILED|ERROR) (\S+\.py::[^\s\[]+(?:\[.+?\])?)(?: - .*)?")
"""A line of pytest's summary: with the test's name."""
WHOLE_LINES = "BUILD_NUMBER"
"""With this variable pytest does not shorten its summary to a terminal's width."""
SHOWN = 600
"""Characters of a failure in the table."""
FORGIVEN = 2
"""So many tests of a run may fail by accident: more are none."""
RUNS_ALONE = 3
"""How often a test that failed has to pass alone."""


@frozen
class Job:
    """One process of pytest."""

    name: str
    python: Python
    selection: tuple[str, ...]
    """Arguments of pytest."""
    is_fast: bool = True
    is_pure: bool = False
    """Whether it runs without the compiled kernel."""


@frozen
class Result:
    """What became of a job."""

    job: Job
    exit_code: int
    summary: str
    """Pytest's last line, or what failed before it ran."""
    seconds: float
    kernel: str = "not run"
    """How the loops over records ran, as `trioha --version` says it."""
    failures: dict[str, str] = field(factory=dict)
    """Pytest's line for each test that failed."""
    passed_alone: bool = False
    """Whether all of `failures` passed when they ran again."""

    @property
    def passed(self) -> bool:
        """Whether no test failed, or not again."""
        return self.exit_code in {0, NOTHING_TO_RUN} or self.passed_alone

    @property
    def may_run_again(self) -> bool:
        """Whether its failures may be accidents: tests that have names, and nothing else."""
        return self.exit_code == TESTS_FAILED and bool(self.failures)

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        line = f"{self.job.name:24} {verdict}  {self.summary} ({self.seconds:.0f} s, kernel: {self.kernel})"
        again = f" (then passed alone, {RUNS_ALONE} of {RUNS_ALONE} times)" if self.passed_alone else ""
        return "\n".join([line, *(f"    {failure}{again}" for failure in self.failures.values())])


def fast_jobs(python: Python, *, is_pure: bool) -> Iterator[Job]:
    """The fast suites, in a job for each part and one for what is in none: a new folder is in that."""
    elsewhere = (*SLOW, *chain.from_iterable(FAST.values()))
    selections = {
        **{part: tuple(f"tests/{name}" for name in names) for part, names in FAST.items()},
        "other rooms": ("tests", *(f"--ignore=tests/{name}" for name in elsewhere)),
    }
    for part, selection in selections.items():
        name = f"{python.minor}{', pure' if is_pure else ''}, {part}"
        yield Job(name, python, ("-m", f"not ({MARKS})", *selection), is_pure=is_pure)


def slow_jobs(python: Python) -> Iterator[Job]:
    """The slow suites, the longest first."""
    ignored = (f"--ignore=tests/{name}" for name in SLOW)
    others = tuple(f"tests/{name}" for name in SLOW if name != "interop")
    yield Job("interop", python, ("tests/interop",), is_fast=False)
    yield Job("spark, faults, hostile", python, others, is_fast=False)
    yield Job("slow tests elsewhere", python, ("-m", MARKS, "tests", *ignored), is_fast=False)


def jobs_of(found: list[Python], usual: Python | None, *, with_slow: bool) -> list[Job]:
    """The jobs in the order in which they start; `usual` is the Python of `.venv`."""
    pythons = [usual if usual is not None and python.minor == usual.minor else python for python in found]
    if not with_slow:
        pure = usual if usual in pythons else next(iter(pythons), None)
        return [job for python in pythons for job in fast_jobs(python, is_pure=python is pure)]
    if usual is None:
        return []
    if usual not in pythons:
        pythons.insert(0, usual)
    pure = next((python for python in pythons if python is not usual), None)
    # Slow jobs begin one after the other: each is JVMs, or nodes that are broken, and loads the machine most.
    slow = slow_jobs(usual)
    jobs = [next(slow), *fast_jobs(usual, is_pure=False)]
    for python in pythons:
        if python is not usual:
            jobs += [*islice(slow, 1), *fast_jobs(python, is_pure=python is pure)]
    if pure is None:
        jobs += fast_jobs(usual, is_pure=True)
    return [*jobs, *slow]


class Runner:
    """Runs jobs side by side."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._output = threading.Lock()
        self._environments: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def run_all(self, jobs: list[Job], *, at_once: int) -> list[Result]:
        """Run all jobs, `at_once` at a time, then a few failures again; results in the order of the jobs."""
        with ThreadPoolExecutor(at_once) as threads:
            results = list(threads.map(self.run, jobs))
        failed = [result for result in results if not result.passed]
        if not all(result.may_run_again for result in failed):
            return results
        if sum(len(result.failures) for result in failed) > FORGIVEN:
            return results
        return [result if result.passed else self.run_again(result) for result in results]

    def run_again(self, result: Result) -> Result:
        """Run the tests of a job that failed, alone, until one fails again."""
        job = evolve(result.job, name=f"{result.job.name}, again", selection=tuple(result.failures))
        return evolve(result, passed_alone=all(self.run(job).exit_code == 0 for _ in range(RUNS_ALONE)))

    def run(self, job: Job) -> Result:
        """Run a job, its lines going through."""
        started_s = time.monotonic()
        self._print(job, "begins")
        try:
            result = self._run(job, started_s)
        except (subprocess.CalledProcessError, OSError) as error:
            result = Result(job, 1, f"no environment: {error}", time.monotonic() - started_s)
        self._print(job, "passed" if result.passed else "FAILED")
        return result

    def _run(self, job: Job, started_s: float) -> Result:
        folder = environment_of(job.python)
        with self._environments[job.python.minor]:
            make_environment(job.python, folder)
        python = str(folder / "bin/python")
        env = {**os.environ, WHOLE_LINES: "1"} | ({PURE_VARIABLE: "1"} if job.is_pure else {})
        kernel = subprocess.check_output([python, "-c", KERNEL], cwd=ROOT, env=env, text=True).strip()
        command = [python, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "-n", "0"]
        command += ["--durations=10", *job.selection, *self._arguments]
        if job.is_fast:
            command = ["sh", "-c", f'ulimit -S -n {OPEN_FILES} && exec "$@"', "sh", *command]
        last = ""
        failures = {}
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as pytest:
            assert pytest.stdout is not None
            for line in pytest.stdout:
                if DOTS.fullmatch(line.strip()) is None:
                    self._print(job, line.rstrip())
                last = line.strip() or last
                if failed := FAILURE.fullmatch(line.strip()):
                    failures[failed[1]] = line.strip()[:SHOWN]
        seconds = time.monotonic() - started_s
        return Result(job, pytest.returncode, last.strip("= ") or "no output", seconds, kernel, failures)

    def _print(self, job: Job, line: str) -> None:
        with self._output:
            print(f"{job.name:24} | {line}", flush=True)


def main(arguments: list[str]) -> int:
    """Run them all; 1 if one failed or none ran."""
    with_slow = arguments[:1] == [ALL]
    jobs = jobs_of(find_pythons(os.environ), usual_python(), with_slow=with_slow)
    at_once = (os.cpu_count() or 1) + 1
    results = Runner(arguments[with_slow:]).run_all(jobs, at_once=at_once)
    print(f"== {'All suites' if with_slow else 'Fast suites: all tests but ' + ', '.join(SLOW)}")
    for result in results:
        print(result)
    if not any(result.exit_code == 0 for result in results):
        print("no test ran: there is no Python 3.11 or newer, or nothing was selected", file=sys.stderr)
        return 1
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
