"""Which jobs there are, that they have every test, and what is said about them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests import suites
from tests.pythons import Python
from tests.suites import FAST, MARKS, SLOW, Job, Result, Runner, jobs_of

TESTS = Path(__file__).parent
OLD, USUAL, NEW = (Python((3, minor, 1), Path("python"), is_virtual=False) for minor in (11, 12, 13))
VENV = Python((3, 12, 4), Path(".venv/bin/python"), is_virtual=True)
"""That of `.venv`: not the newest 3.12."""


def kinds(jobs: list[Job]) -> list[tuple[Python, bool, bool]]:
    return list(dict.fromkeys((job.python, job.is_fast, job.is_pure) for job in jobs))


def test_the_python_of_make_test_runs_the_fast_suites_without_the_compiled_kernel() -> None:
    jobs = jobs_of([OLD, USUAL, NEW], VENV, with_slow=False)
    assert kinds(jobs) == [(OLD, True, False), (VENV, True, True), (NEW, True, False)]
    jobs = jobs_of([OLD, NEW], VENV, with_slow=False)
    assert kinds(jobs) == [(OLD, True, True), (NEW, True, False)]
    assert jobs_of([], VENV, with_slow=False) == []


def test_all_tests_run_compiled_on_the_python_of_make_test_and_pure_on_another() -> None:
    jobs = jobs_of([OLD, USUAL, NEW], VENV, with_slow=True)
    assert kinds(jobs) == [(VENV, False, False), (VENV, True, False), (OLD, True, True), (NEW, True, False)]
    assert kinds(jobs_of([], VENV, with_slow=True)) == [
        (VENV, False, False),
        (VENV, True, False),
        (VENV, True, True),
    ]
    jobs = jobs_of([OLD, USUAL, NEW], VENV, with_slow=True)
    assert [job.name for job in jobs if not job.is_fast] == [
        "interop",
        "spark, faults, hostile",
        "slow tests elsewhere",
    ]
    assert len(jobs) == 12
    # The three slow ones do not begin together.
    assert [number for number, job in enumerate(jobs) if not job.is_fast] == [0, 4, 8]
    assert jobs_of([OLD], None, with_slow=True) == []


def test_each_python_has_every_fast_test_once_and_that_of_make_test_every_slow_one_once() -> None:
    """Every folder, and every file outside of folders, is in the right number of jobs."""
    places = [path for path in TESTS.iterdir() if path.suffix == ".py" or any(path.glob("test_*.py"))]
    named = (*SLOW, *chain.from_iterable(FAST.values()))
    assert len(set(named)) == len(named)
    assert {TESTS / name for name in named} <= set(places)
    for path in places:
        for marked in (False, True):
            seen = [
                job.python
                for job in jobs_of([OLD, USUAL, NEW], VENV, with_slow=True)
                if is_run(path, job.selection, is_marked=marked)
            ]
            is_slow = path.name in SLOW or marked
            assert seen == ([VENV] if is_slow else [VENV, OLD, NEW]), path


def is_run(path: Path, selection: tuple[str, ...], *, is_marked: bool) -> bool:
    """Whether pytest runs the tests of a place that have one of the marks, or none of them."""
    words = list(selection)
    if words[0] == "-m":
        assert words[1] in {MARKS, f"not ({MARKS})"}
        if is_marked != (words[1] == MARKS):
            return False
        words = words[2:]
    name = f"tests/{path.name}"
    return f"--ignore={name}" not in words and ("tests" in words or name in words)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runner:
    """Runs jobs with this Python in place of each, on what a test writes to a folder."""
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    started = environment / "bin/python"
    started.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    started.chmod(0o755)
    monkeypatch.setattr(suites, "environment_of", lambda _python: environment)
    monkeypatch.setattr(suites, "make_environment", lambda _python, _folder: None)
    return Runner([])


@pytest.mark.timeout(400)
def test_jobs_run_side_by_side_with_their_limits_and_one_that_failed_fails_all(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEETING", str(tmp_path))
    meet = (
        "import os, resource, time\nfrom pathlib import Path\n"
        "def test_meets():\n"
        "    meeting = Path(os.environ['MEETING'])\n"
        "    (meeting / str(os.getpid())).with_suffix('.here').touch()\n"
        "    deadline_s = time.monotonic() + 110\n"
        "    while len(list(meeting.glob('*.here'))) < 2:\n"
        "        assert time.monotonic() < deadline_s\n"
        "        time.sleep(0.02)\n"
        "    assert os.environ.get('TRIOHA_PURE', '0') == '{pure}'\n"
        "    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] {limit}\n"
    )
    fast, slow, failing = (tmp_path / f"test_{name}.py" for name in ("fast", "slow", "failing"))
    fast.write_text(meet.format(pure=1, limit="== 256"))
    slow.write_text(meet.format(pure=0, limit="> 0"))
    failing.write_text("def test_fails():\n    assert not 'found'\n")
    monkeypatch.delenv("TRIOHA_PURE", raising=False)
    first = Job("first", VENV, (str(fast),), is_pure=True)
    second = Job("second", VENV, (str(slow),), is_fast=False)
    third = Job("third", VENV, (str(failing),))
    nothing = Job("nothing", VENV, ("-k", "no_such_test", str(slow)))
    results = runner.run_all([first, second, third, nothing], at_once=2)
    said = capsys.readouterr().out
    assert [result.job for result in results] == [first, second, third, nothing], said
    assert [result.passed for result in results] == [True, True, False, True], said
    assert results[0].kernel.startswith("pure")
    assert re.search(r"^third +\| E +(Assertion|assert)", said, re.MULTILINE)
    assert re.search(r"^third +\| FAILED$", said, re.MULTILINE)
    assert not re.search(r"\| \. ", said)


BY_CHANCE = """
from pathlib import Path
import pytest

def is_good(name):
    seen = Path(__file__).with_name(name)
    runs = int(seen.read_text()) + 1 if seen.exists() else 0
    seen.write_text(str(runs))
    return runs in {good}

def test_passes():
    assert not Path(__file__).with_name("ran").exists()
    Path(__file__).with_name("ran").touch()

@pytest.mark.parametrize("name", {names})
def test_fails(name):
    assert is_good(name), "at first - always"

@pytest.fixture
def server():
    assert is_good("server")

def test_starts(server):
    pass
"""
"""All but the first fail in runs that are not in `good`, counted from 0; that one, if it ran again."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param((["[x - y] z"], "{1, 2, 3}", 3), id="two failures"),
        pytest.param((["a"], "{1, 2}", 3), id="one fails again"),
        pytest.param((["a"], "{3}", 1), id="both fail again"),
        pytest.param((["a", "b"], "{1, 2, 3}", 0), id="too many"),
    ],
)
def test_a_few_failures_run_again_alone_and_are_named_in_the_table(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: tuple[list[str], str, int]
) -> None:
    names, good, runs = case
    passes = (good, runs) == ("{1, 2, 3}", 3)
    tests = tmp_path / "test_at_first.py"
    tests.write_text(BY_CHANCE.replace("{names}", repr(names)).replace("{good}", good))
    job = Job("interop", VENV, (str(tests), f"--rootdir={tmp_path}"), is_fast=False)
    (result,) = runner.run_all([job], at_once=1)
    said = capsys.readouterr().out
    assert result.passed is result.passed_alone is passes, said
    assert said.count("interop, again           | begins") == runs
    lines = str(result).splitlines()
    assert lines[0].startswith(f"{'interop':24} {'passed' if passes else 'FAILED'}  ")
    assert len(lines) == len(names) + 2
    assert any("test_fails" in line and "at first - always" in line for line in lines), lines
    assert any("ERROR" in line and "test_starts" in line for line in lines), lines
    assert all(line.endswith("(then passed alone, 3 of 3 times)") is passes for line in lines[1:])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("other", ["def test_fails():\n    assert False\n", "not Python\n"])
def test_failures_of_all_jobs_count_together(runner: Runner, tmp_path: Path, other: str) -> None:
    tests, others = tmp_path / "test_at_first.py", tmp_path / "test_other.py"
    tests.write_text(BY_CHANCE.replace("{names}", "['a']").replace("{good}", "{1, 2, 3}"))
    others.write_text(other)
    rootdir = f"--rootdir={tmp_path}"
    jobs = [Job("first", VENV, (str(tests), rootdir)), Job("second", VENV, (str(others), rootdir))]
    first, second = runner.run_all(jobs, at_once=1)
    assert not first.passed_alone
    assert not second.passed
    assert (tmp_path / "a").read_text() == "0", "it ran once"


def test_a_job_without_its_environment_fails(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(python: Python, folder: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(suites, "make_environment", refuse)
    (result,) = runner.run_all([Job("first", VENV, ())], at_once=1)
    assert not result.passed
    assert result.summary == "no environment: no room"
    assert f"{'first':24} | FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("exit_codes", "expected"), [([0, 0], 0), ([0, 1], 1), ([0, 5], 0), ([5, 5], 1), ([], 1)]
)
def test_there_is_one_line_for_each_job_and_the_run_passes_if_tests_ran_and_none_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], exit_codes: list[int], expected: int
) -> None:
    jobs = [Job(f"job {number}", VENV, ()) for number in range(len(exit_codes))]
    asked: list[bool] = []

    def chosen(found: list[Python], usual: Python | None, *, with_slow: bool) -> list[Job]:
        asked.append(with_slow)
        return jobs

    monkeypatch.setattr(suites, "jobs_of", chosen)
    monkeypatch.setattr(suites, "find_pythons", lambda _env: [])
    monkeypatch.setattr(
        Runner,
        "run",
        lambda _self, job: Result(job, exit_codes[jobs.index(job)], "7 of them", 5.2, "compiled"),
    )
    assert suites.main(["--all", "-x"]) == suites.main([]) == expected
    assert asked == [True, False]
    said = capsys.readouterr().out.splitlines()
    assert said[1 : len(jobs) + 1] == [
        f"{f'job {number}':24} {'FAILED' if code == 1 else 'passed'}  7 of them (5 s, kernel: compiled)"
        for number, code in enumerate(exit_codes)
    ]


def test_one_job_more_than_cores_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def note(_self: Runner, jobs: list[Job], *, at_once: int) -> list[Result]:
        seen.append(at_once)
        return []

    monkeypatch.setattr(Runner, "run_all", note)
    monkeypatch.setattr(suites, "find_pythons", lambda _env: [])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert suites.main([]) == 1
    assert seen == [5]
