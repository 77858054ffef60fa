"""The Pythons of this machine, and a virtual environment for each with what the tests need.

CPython 3.11 and newer, wherever PATH, pyenv and uv have them, the newest of each minor version. A command
that does not run, as a shim of pyenv for a version that is not active, does not count.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[1]
USUAL = ROOT / ".venv"
"""The environment of `make test`."""
OLDEST = (3, 11)
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
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile")
"""Bytecode is compiled where tests import it: most of the largest packages they do not."""


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


def usual_python() -> Python | None:
    """That of `.venv`; None if there is none."""
    return probe(USUAL / "bin/python")


def environment_of(python: Python) -> Path:
    """Where its virtual environment is, or will be: `.venv` if that is of this version."""
    usual = usual_python()
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
