"""Installs what `make dist` made into clean environments, and runs each command and a node.

Nothing is taken from the checkout, and trioha itself from no index: what it requires is installed first, in
the versions of requirements.lock.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import frozen
from packaging.metadata import Metadata

ROOT: Final = Path(__file__).parents[2]
WITHIN_S: Final = 1800.0
"""For an installation."""
COMMAND_WITHIN_S: Final = 120.0
DEMO_WITHIN_S: Final = 600.0
LIST_COMMANDS: Final = "from trioha.cli import COMMANDS; print(*COMMANDS)"


class SmokeError(Exception):
    """An installed trioha does not do what it must; the text has what was said."""


@frozen
class Way:
    """A way to install trioha."""

    name: str
    options: tuple[str, ...]
    """Of pip."""
    has_compiler: bool
    is_compiled: bool
    """What `trioha --version` says then."""


FROM_WHEEL: Final = Way("wheel", ("--only-binary", "trioha"), has_compiler=False, is_compiled=True)
FROM_SOURCE: Final = Way("sdist", ("--no-binary", "trioha"), has_compiler=True, is_compiled=True)
FROM_SOURCE_PURE: Final = Way(
    "sdist, no compiler", ("--no-binary", "trioha"), has_compiler=False, is_compiled=False
)
WAYS: Final = (FROM_WHEEL, FROM_SOURCE, FROM_SOURCE_PURE)


def run(*command: str | Path, cwd: Path, within_s: float = WITHIN_S, **variables: str) -> str:
    """The output of a command that succeeds. Raises SmokeError."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "VIRTUAL_ENV", "TRIOHA_PURE", "MAKEFLAGS", "MAKELEVEL"}
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    if done.returncode:
        raise SmokeError(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def requirements_of(wheel_metadata: bytes, extras: Sequence[str]) -> list[str]:
    """What trioha requires with `extras`, as pip reads it."""
    found = Metadata.from_email(wheel_metadata).requires_dist or []
    return [
        str(each).partition(";")[0].strip()
        for each in found
        if each.name != "trioha"
        and (each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)))
    ]


def versions(folder: Path) -> Path:
    """requirements.lock as constraints, which have no hashes, in `folder`."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = [line.removesuffix("\\").strip() for line in lines if re.match(r"[a-z0-9]", line)]
    path = folder / "versions.txt"
    path.write_text("\n".join([*pinned, ""]))
    return path


def smoke(python: Path, way: Way, *, dist: Path, metadata: bytes, extras: Sequence[str], folder: Path) -> str:
    """Install in one way for one Python, and try it; returns what `trioha --version` says.

    Raises SmokeError.
    """
    folder.mkdir(parents=True)
    constraints = versions(folder)
    run(python, "-m", "venv", folder / "env", cwd=folder)
    command = folder / "env/bin"
    pip = (command / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # An isolated build has the same versions, too.
    variables = {"PIP_CONSTRAINT": str(constraints), "PATH": os.environ["PATH"]}
    if not way.has_compiler:
        variables["CC"] = str(folder / "no-compiler")
    run(*pip, *requirements_of(metadata, extras), cwd=folder, **variables)
    if way.options[0] == "--no-binary":
        # Its build requires these, and trioha is to come from `dist` alone.
        run(*pip, "hatchling", "mypy", "setuptools", cwd=folder, **variables)
        variables["PATH"] = f"{command}:{variables['PATH']}"
        isolation = ("--no-build-isolation",)
    else:
        isolation = ()
    # pip keeps the wheel that it builds of an sdist by the sdist's path, and would install it the next time.
    run(
        *pip, "--no-cache-dir", "--no-index", "--no-deps", "--find-links", dist, *isolation, *way.options,
        "trioha", cwd=folder, **variables,
    )  # fmt: skip
    version = run(command / "trioha", "--version", cwd=folder, within_s=COMMAND_WITHIN_S).strip()
    wanted = "compiled" if way.is_compiled else "pure"
    if f"(kernel: {wanted}" not in version:
        raise SmokeError(f"trioha --version says {version!r}, and its kernel should be {wanted}")
    for name in run(command / "python", "-c", LIST_COMMANDS, cwd=folder).split():
        said = run(command / "trioha", name, "--help", cwd=folder, within_s=COMMAND_WITHIN_S)
        if not said.startswith(f"Usage: trioha {name}"):
            raise SmokeError(f"trioha {name} --help says {said[:200]!r}")
    start_node(command / "trioha", folder)
    if "spark" in extras:
        # A pair, a recovery, a comparison, and a replay on Spark.
        run(command / "trioha", "demo", cwd=folder, within_s=DEMO_WITHIN_S)
    return version


def start_node(command: Path, folder: Path) -> None:
    """A node whose settings are of the environment comes up, and stops. Raises SmokeError."""
    settings = {
        "TRIOHA_STORE_PATH_ROOT_DIR": str(folder / "store"),
        "TRIOHA_BIND_ADDRESS": "127.0.0.1",
        "TRIOHA_BROKER_IP1": "127.0.0.1",
        "TRIOHA_LISTEN_PORT": "0",
        "TRIOHA_MAPPED_FILE_SIZE_COMMIT_LOG": "16777216",
        "TRIOHA_DISK_SPACE_WARNING_LEVEL_RATIO": "100",
    }
    with subprocess.Popen(
        [str(command), "node"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)} | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        text=True,
    ) as node:
        assert node.stdout is not None
        try:
            line = node.stdout.readline()
            node.terminate()
            code = node.wait(COMMAND_WITHIN_S)
        finally:
            node.kill()
    if not line.startswith("ready ") or code:
        raise SmokeError(f"a node said {line!r} and ended with {code}")
