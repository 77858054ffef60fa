"""`make nightly`: whatever can find a defect, without a limit of time; one report of all of it.

Each stage is a command that can be run by itself. A stage that fails ends no other. Its output goes to a file
beside the report, `build/nightly/report.md`; its exit code, its time and its last line go to the report.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from attrs import frozen

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build/nightly"
OLDEST_MINOR, NEWEST_MINOR = 11, 14
"""Of the CPythons that trioha is for."""
_RUNS: Final = "import ensurepip, sys; sys.exit(sys.prefix != sys.base_prefix)"


@frozen
class Stage:
    """A command of the nightly run."""

    name: str
    """Also of its file."""
    command: str
    """For a shell in the checkout."""


@frozen
class Outcome:
    """What became of a stage."""

    stage: Stage
    exit_code: int
    seconds: float
    last_line: str
    failures: tuple[str, ...]
    """Pytest's line for each test that failed."""


def pythons() -> Iterator[tuple[str, Path]]:
    """Version and command of each Python of this machine but that of `.venv`, on PATH or of pyenv or uv."""
    home = Path.home()
    folders = [
        *map(Path, os.environ.get("PATH", "").split(os.pathsep)),
        *(Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions").glob("*/bin"),
        *(home / ".local/share/uv/python").glob("*/bin"),
    ]
    for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1):
        if minor == sys.version_info.minor:
            continue
        found = (path for folder in folders if (path := folder / f"python3.{minor}").exists() and runs(path))
        if (path := next(found, None)) is not None:
            yield f"3.{minor}", path


def runs(path: Path) -> bool:
    """Whether a command is a Python that can make an environment: a shim of pyenv may lead nowhere."""
    return subprocess.run([path, "-c", _RUNS], capture_output=True, check=False).returncode == 0


def stages() -> Iterator[Stage]:
    """All stages; those that take longest come last."""
    yield Stage("lint", "make lint")
    yield Stage("dist", "make dist")
    yield Stage("plain-python", "make test-pure LEVEL=all")
    for version, path in pythons():
        environment = f"PYTHON={shlex.quote(str(path))} VENV=.venv-{version}"
        yield Stage(f"python-{version}", f"make test-fast LEVEL=all {environment}")
    yield Stage("model", "make model N=200")
    yield Stage("simulation", "make simulation N=10000")
    yield Stage("power-cut", "make power-cut N=5")
    yield Stage("faults", "make faults N=200")
    yield Stage("hostile", "make hostile N=1000000")
    yield Stage("hostile-users", "make hostile N=200000 ARGS=--users")
    # A run that is cut has said which tests have failed.
    yield Stage("tests", "make test LEVEL=nightly ROCKETMQ_VERSIONS=all ARGS=-v")
    yield Stage("screenshots", "make screenshots")
    yield Stage("benchmarks", "make bench ARGS=--quick")


def run(stage: Stage) -> Outcome:
    """Run a stage to its end; its lines go to its file."""
    began_s = time.monotonic()
    path = FOLDER / f"{stage.name}.txt"
    with path.open("wb") as file:
        done = subprocess.run(
            ["sh", "-c", stage.command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            check=False,
        )
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    results = [line for line in lines if re.search(r"\d+ passed|\d+ failed", line)] or lines
    return Outcome(
        stage=stage,
        exit_code=done.returncode,
        seconds=time.monotonic() - began_s,
        last_line=results[-1].strip("= ") if results else "no output",
        failures=tuple(line for line in lines if line.startswith(("FAILED ", "ERROR tests/"))),
    )


def report(outcomes: list[Outcome], *, began: datetime) -> str:
    """The report in Markdown."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    rows = [
        f"| {outcome.stage.name} | {'passed' if not outcome.exit_code else 'FAILED'} | {outcome.seconds:.0f} "
        f"| {outcome.last_line.replace('|', '/')} | `{outcome.stage.command}` |"
        for outcome in outcomes
    ]
    failures = [f"- {outcome.stage.name}: {line}" for outcome in outcomes for line in outcome.failures]
    return "\n".join(
        [
            f"# Nightly run of {commit}, {began:%Y-%m-%d %H:%M} UTC",
            "",
            f"{sys.platform}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
            "",
            "| stage | outcome | s | result | command |",
            "|---|---|--:|---|---|",
            *rows,
            *(["", "## Failures", "", *failures] if failures else []),
            "",
        ]
    )


def main(names: list[str]) -> int:
    """Run the stages of these names, or all; 1 if one failed. The report grows with each stage."""
    chosen = [stage for stage in stages() if not names or stage.name in names]
    if unknown := set(names) - {stage.name for stage in chosen}:
        print(f"no such stage: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC)
    outcomes: list[Outcome] = []
    for stage in chosen:
        print(f"{datetime.now(UTC):%H:%M:%S} {stage.name}: {stage.command}", flush=True)
        outcomes.append(run(stage))
        print(f"         exit code {outcomes[-1].exit_code}, {outcomes[-1].last_line}", flush=True)
        (FOLDER / "report.md").write_text(report(outcomes, began=began))
    print(f"report: {(FOLDER / 'report.md').relative_to(ROOT)}")
    return 1 if any(outcome.exit_code for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
