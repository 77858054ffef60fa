"""Run the fast suites on every Python of this machine: `make test-pythons`.

Looks for CPython 3.11 and newer on PATH and among the versions of pyenv and uv, takes the newest of each
minor version, and gives each a virtual environment of its own (`.venv-3.12`) with the locked dependencies. A
command that does not run, as a shim of pyenv for a version that is not active, does not count. The suites run
with a soft limit of 256 open files, as macOS has; nodes that they start may raise it. They need no Java.

`make test` runs everything with the compiled kernel, on the Python of `.venv`. So that Python (if it is not
among them, the oldest) runs without it here, with `TRIOHA_PURE=1`: both together run the suites both ways.
The other Pythons compile the kernel if they find a compiler. Each Python's line says how its kernel ran.

Left out: interop and spark, whose time is the JVM's, faults and hostile, which break live nodes for minutes,
and benchmarks.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import frozen

from trioha.store.compiled import PURE_VARIABLE

ROOT = Path(__file__).parents[1]
USUAL = ROOT / ".venv"
"""The environment of `make test`."""
SLOW = ("benchmarks", "faults", "hostile", "interop", "spark")
"""Folders that do not belong to the fast suites."""
OLDEST = (3, 11)
OPEN_FILES = 256
KERNEL = "from trioha.store import compiled; print(compiled.DESCRIPTION)"
PROBE = """
import ensurepip, json, platform, sys, sysconfig, venv
print(json.dumps({
    "implementation": platform.python_implementation(),
    "version": sys.version_info[:3],
    "is_final": sys.version_info.releaselevel == "final",
    "executable": sys.executable,
    "is_virtual": sys.prefix != sys.base_prefix,
    "has_lock": not sysconfig.get_config_var("Py_GIL_DISABLED"),
}))
"""
COMMAND = re.compile(r"python3\.\d+")
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input")


@frozen
class Python:
    """An interpreter that runs."""

    version: tuple[int, int, int]
    path: Path
    is_virtual: bool
    """Whether it is that of a virtual environment."""

    @property
    def minor(self) -> str:
        """As a virtual environment's name has it: `3.12`."""
        return f"{self.version[0]}.{self.version[1]}"


@frozen
class Result:
    """What became of one Python's run."""

    python: Python
    passed: bool
    summary: str
    """Pytest's last line, or what failed before it ran."""
    seconds: float
    kernel: str = "not run"
    """How the loops over records ran, as `trioha --version` says it."""

    def __str__(self) -> str:
        version = ".".join(map(str, self.python.version))
        verdict = "passed" if self.passed else "FAILED"
        return f"Python {version:8} {verdict}  {self.summary} ({self.seconds:.0f} s, kernel: {self.kernel})"


def folders(env: Mapping[str, str]) -> Iterator[Path]:
    """Where commands named `python3.N` may be: PATH, pyenv's versions, uv's."""
    yield from (Path(folder) for folder in env.get("PATH", "").split(os.pathsep) if folder)
    home = Path(env.get("HOME", "/nonexistent"))
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv")
    uv = Path(
        env.get("UV_PYTHON_INSTALL_DIR")
        or Path(env.get("XDG_DATA_HOME") or home / ".local/share") / "uv/python"
    )
    for root in (pyenv / "versions", uv):
        yield from sorted(root.glob("*/bin"))


def probe(path: Path) -> Python | None:
    """The interpreter at `path`; None if it does not run, has no venv module, or is too old."""
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    if done.returncode:
        return None
    said = json.loads(done.stdout)
    major, minor, micro = said["version"]
    if said["implementation"] != "CPython" or not said["is_final"] or not said["has_lock"]:
        return None
    if (major, minor) < OLDEST:
        return None
    # Where a shim leads to: what the shim itself runs depends on the working directory.
    return Python((major, minor, micro), Path(said["executable"]), said["is_virtual"])


def find_pythons(env: Mapping[str, str]) -> list[Python]:
    """The newest Python of each minor version, oldest first."""
    newest: dict[str, Python] = {}
    seen: set[Path] = set()
    for folder in folders(env):
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir()):
            if not COMMAND.fullmatch(path.name) or path in seen:
                continue
            seen.add(path)
            python = probe(path)
            if python is None or python.is_virtual:
                continue
            if python.minor not in newest or python.version > newest[python.minor].version:
                newest[python.minor] = python
    return sorted(newest.values(), key=lambda python: python.version)


def choose_pure(found: list[Python]) -> Python | None:
    """Which Python's run is in plain Python: that of `make test`, else the oldest; None without any."""
    usual = probe(USUAL / "bin/python")
    same = [python for python in found if usual is not None and python.minor == usual.minor]
    return next(iter(same + found), None)


def environment_of(python: Python) -> Path:
    """Where its virtual environment is, or will be: `.venv` if that is of this version."""
    usual = probe(USUAL / "bin/python")
    is_usual = usual is not None and usual.version == python.version
    return USUAL if is_usual else ROOT / f".venv-{python.minor}"


def make_environment(python: Python, folder: Path) -> None:
    """Make or renew the virtual environment; raises CalledProcessError.

    It is kept as long as it is newer than what it is made from and of the same version.
    """
    marker = folder / ".installed"
    sources = [ROOT / "requirements.lock", ROOT / "pyproject.toml"]
    inside = folder / "bin/python"
    found = probe(inside)
    if found is None or found.version != python.version:
        subprocess.run([python.path, "-m", "venv", "--clear", folder], check=True)
    elif marker.exists() and all(marker.stat().st_mtime >= source.stat().st_mtime for source in sources):
        # The kernel may have been edited since.
        subprocess.run([inside, "hatch_build.py"], cwd=ROOT, check=True)
        return
    print(f"Installing the locked dependencies into {folder.name}: some minutes the first time.", flush=True)
    subprocess.run([inside, *PIP, "--require-hashes", "-r", "requirements.lock"], cwd=ROOT, check=True)
    subprocess.run([inside, *PIP, "--no-deps", "--no-build-isolation", "-e", "."], cwd=ROOT, check=True)
    marker.touch()


def run(python: Python, arguments: Iterable[str], *, is_pure: bool) -> Result:
    """Run the fast suites on `python`, their output going through; `is_pure`: without the compiled kernel."""
    started_s = time.monotonic()
    folder = environment_of(python)
    try:
        make_environment(python, folder)
    except subprocess.CalledProcessError as error:
        summary = f"no environment: {error}"
        return Result(python, passed=False, summary=summary, seconds=time.monotonic() - started_s)
    env = os.environ | ({PURE_VARIABLE: "1"} if is_pure else {})
    kernel = subprocess.check_output(
        [folder / "bin/python", "-c", KERNEL], cwd=ROOT, env=env, text=True
    ).strip()
    print(f"Kernel: {kernel}", flush=True)
    command = [folder / "bin/python", "-m", "pytest", "-q", "--color=no"]
    command += ["-m", "not spark and not interop"]
    command += [f"--ignore=tests/{name}" for name in SLOW]
    command += ["-n", "auto", "--maxprocesses", "4", "--dist", "loadgroup", *arguments]
    last = ""
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as pytest:
        assert pytest.stdout is not None
        for line in pytest.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    summary = last.strip("= ") or "no output"
    return Result(
        python,
        passed=pytest.returncode == 0,
        summary=summary,
        seconds=time.monotonic() - started_s,
        kernel=kernel,
    )


def main(arguments: list[str]) -> int:
    """Run them all; 1 if one failed or none was found."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    found = find_pythons(os.environ)
    pure = choose_pure(found)
    results = []
    for python in found:
        print(f"== Python {'.'.join(map(str, python.version))}: {python.path}", flush=True)
        results.append(run(python, arguments, is_pure=python is pure))
    print("== Fast suites: all tests but " + ", ".join(SLOW))
    for result in results:
        print(result)
    if not results:
        print("no Python 3.11 or newer was found", file=sys.stderr)
    return 0 if results and all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
