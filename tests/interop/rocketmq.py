"""Real RocketMQ on this machine: its jars from Maven Central, and the Java driver compiled against them.

Both are made once per machine in a cache folder outside the checkout (`$XDG_CACHE_HOME/trioha-interop`, or
`~/.cache/trioha-interop`), one folder per version. The fingerprint of what they were made of, in a stamp
beside the jars and in the name of a folder of classes, makes later runs offline and fast; a lock file lets
several test runs share the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from _pytest.mark import ParameterSet

from trioha.cli.rocketmq_jars import (
    COPY_DEPENDENCIES,
    JDK_MAJOR_MIN,
    cache_folder,
    copy_command,
    java_tool,
    pom,
)

ALL_VERSIONS = ("4.9.7", "5.3.3", "5.4.0", "5.5.0")
"""Versions whose broker and name server Maven Central has whole, oldest first."""
USUAL_VERSIONS = ("4.9.7", "5.5.0")
"""The newest of each line."""


def chosen_versions(wanted: str) -> tuple[str, ...]:
    """The versions of `wanted`, a list of versions or `all`, oldest first; the usual ones if it is empty.

    The newest is one of 5.x: some tests need what only that has. Raises ValueError for any other version.
    """
    names = ALL_VERSIONS if wanted == "all" else tuple(wanted.split()) or USUAL_VERSIONS
    if unknown := set(names) - set(ALL_VERSIONS):
        raise ValueError(
            f"ROCKETMQ_VERSIONS: {', '.join(sorted(unknown))} is not one of {', '.join(ALL_VERSIONS)}"
        )
    if not any(map(is_5, names)):
        raise ValueError("ROCKETMQ_VERSIONS needs a version of 5.x")
    return tuple(version for version in ALL_VERSIONS if version in names)


def is_5(version: str) -> bool:
    """Whether a version of RocketMQ is of 5.x, which has the HA status and waits for several slaves."""
    return version.startswith("5.")


def indexes_tags(version: str) -> bool:
    """Whether a version of RocketMQ has an index entry for the tag of each message: from 5.4 on."""
    return is_5(version) and version >= "5.4"


def writes_logics_offset(version: str) -> bool:
    """Whether the checkpoints of a version of RocketMQ have logicsPhysicalOffset: from 5.5 on."""
    return is_5(version) and version >= "5.5"


VERSIONS = chosen_versions(os.environ.get("ROCKETMQ_VERSIONS", ""))
"""What this run tests."""
NEWEST = VERSIONS[-1]
LINES = tuple(dict.fromkeys((VERSIONS[0], NEWEST)))
"""The oldest, of 4.9 in CI, and the newest."""
VERSIONS_5 = tuple(filter(is_5, VERSIONS))
"""Those of 5.x, which has controllers."""


def version_params(*in_ci: str, versions: tuple[str, ...] = VERSIONS) -> list[ParameterSet]:
    """A parameter for each version: the newest at the test's level, those of `in_ci` full, others nightly.

    Versions that ROCKETMQ_VERSIONS names are wanted at every level.
    """
    named = os.environ.get("ROCKETMQ_VERSIONS", "") not in {"", "all"}

    def marks(version: str) -> tuple[pytest.MarkDecorator, ...]:
        if named or version == NEWEST:
            return ()
        return (pytest.mark.full if version in in_ci else pytest.mark.nightly,)

    return [pytest.param(version, id=f"rocketmq-{version}", marks=marks(version)) for version in versions]


both_lines = pytest.mark.parametrize("java", version_params("4.9.7"), indirect=True)
"""For a test of what 4.9.7 does otherwise than 5.5.0: CI runs it with both."""
only_4 = pytest.mark.parametrize(
    "java",
    version_params("4.9.7", versions=tuple(version for version in VERSIONS if not is_5(version))),
    indirect=True,
)
"""For a test of what only 4.9 does."""
only_5 = pytest.mark.parametrize("java", version_params(versions=VERSIONS_5), indirect=True)
"""For a test of what 4.9 does not have."""
JAVA_SOURCES = Path(__file__).parent / "java"
JAVA_SDK_VERSION = "5.0.8"
"""Of the SDK of gRPC, which has versions of its own."""

_MAVEN_TIMEOUT_S = 600.0
_JAVAC_TIMEOUT_S = 300.0


class ToolchainError(Exception):
    """Maven or javac is there, but did not do its work: the tests fail, they are not skipped."""


def missing_tools() -> str | None:
    """What this machine lacks to run real RocketMQ, as one line; None if it has everything."""
    for tool in ("mvn", java_tool("java"), java_tool("javac")):
        if shutil.which(tool) is None:
            return f"interop tests need Maven and a JDK {JDK_MAJOR_MIN} or newer: there is no `{tool}`"
    said = subprocess.run([java_tool("javac"), "-version"], capture_output=True, text=True, check=False)
    found = re.search(r"javac (\d+)", said.stdout + said.stderr)
    if found is None or int(found[1]) < JDK_MAJOR_MIN:
        have = (said.stdout + said.stderr).strip() or "nothing"
        return f"interop tests need a JDK {JDK_MAJOR_MIN} or newer: `javac -version` says {have}"
    return None


def home_flags(home: Path) -> list[str]:
    """Flags of a JVM of RocketMQ: it writes to the user's home and the temporary folder, wherever its store
    is."""
    return [f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", f"-Drocketmq.home.dir={home}"]


def class_path(version: str, *, cache: Path | None = None) -> str:
    """The class path of the driver for RocketMQ `version`; fetches and compiles what is not there yet.

    Raises `ToolchainError` with the tool's own words if Maven or javac fails.
    """
    # Brokers do not come with mqadmin, name servers not with brokers.
    tools = name_server_class_path(version, cache=cache)
    folder = (cache or cache_folder()) / version
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        jars = f"{_jars(version, folder, artifact='rocketmq-broker')}/*{os.pathsep}{tools}"
        return f"{_classes(version, folder, jars)}{os.pathsep}{jars}"


def name_server_class_path(version: str, *, cache: Path | None = None) -> str:
    """The jars of RocketMQ's name server, its controller and mqadmin; fetches what is not there yet.

    Raises `ToolchainError` as `class_path` does.
    """
    folder = (cache or cache_folder()) / f"{version}-namesrv"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        return f"{_jars(version, folder, artifact='rocketmq-namesrv')}/*"


def proxy_class_path(version: str, *, cache: Path | None = None) -> str:
    """The jars of RocketMQ's proxy; fetches what is not there yet.

    Raises `ToolchainError` as `class_path` does.
    """
    folder = (cache or cache_folder()) / f"{version}-proxy"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        return f"{_jars(version, folder, artifact='rocketmq-proxy')}/*"


def java_sdk_jars(*, cache: Path | None = None) -> str:
    """The jars of Apache's Java SDK of gRPC; fetches what is not there yet.

    Raises `ToolchainError` as `class_path` does.
    """
    folder = (cache or cache_folder()) / f"{JAVA_SDK_VERSION}-client-java"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        return f"{_jars(JAVA_SDK_VERSION, folder, artifact='rocketmq-client-java')}/*"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _jars(version: str, folder: Path, *, artifact: str) -> Path:
    project = pom(version, artifact=artifact)
    jars, stamp = folder / "lib", folder / "lib.stamp"
    fingerprint = _fingerprint(project, COPY_DEPENDENCIES)
    if stamp.is_file() and stamp.read_text() == fingerprint and any(jars.glob(f"{artifact}-*.jar")):
        return jars
    shutil.rmtree(jars, ignore_errors=True)
    stamp.unlink(missing_ok=True)
    (folder / "pom.xml").write_text(project)
    _run(copy_command(jars), cwd=folder, timeout_s=_MAVEN_TIMEOUT_S)
    stamp.write_text(fingerprint)
    return jars


def _classes(version: str, folder: Path, jars: str) -> Path:
    sources = sorted([*JAVA_SOURCES.glob("*.java"), *(JAVA_SOURCES / version[0]).glob("*.java")])
    # JVMs load classes until they end: those of other sources, of other checkouts, stay where they are.
    classes = folder / f"classes-{_fingerprint(*(source.read_text() for source in sources))[:16]}"
    if classes.is_dir():
        return classes
    with TemporaryDirectory(dir=folder, prefix="javac-") as fresh:
        made = Path(fresh, "classes")
        _run(
            [
                java_tool("javac"), "--release", str(JDK_MAJOR_MIN), "-proc:none", "-encoding", "UTF-8",
                "-cp", jars, "-d", str(made), *map(str, sources),
            ],
            cwd=made.parent,
            timeout_s=_JAVAC_TIMEOUT_S,
        )  # fmt: skip
        made.rename(classes)
    return classes


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _run(command: list[str], *, cwd: Path, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise ToolchainError(f"{command[0]} did not end within {timeout_s:.0f} s") from late
    if done.returncode != 0:
        raise ToolchainError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
