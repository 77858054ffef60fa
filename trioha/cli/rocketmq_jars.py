"""RocketMQ's own client for the demo: its jars from Maven Central, fetched once per machine.

They are kept in a cache folder outside the checkout (`$XDG_CACHE_HOME/trioha-interop`, or
`~/.cache/trioha-interop`), in which the interop tests keep theirs. A folder gets its name when it is whole,
so runs at the same time need no lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from trioha.errors import TriohaError

VERSION: Final = "5.5.0"
"""Of the demo's client."""
JDK_MAJOR_MIN: Final = 17
FETCH_TIMEOUT_S: Final = 300.0
COPY_DEPENDENCIES: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
"""Pinned, so that a new release of the plugin cannot change what a run does."""

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>trioha</groupId>
  <artifactId>interop-{version}</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


class JarsError(TriohaError):
    """RocketMQ's client cannot be had on this machine: what is missing, or what Maven printed."""


def pom(version: str, *, artifact: str) -> str:
    """A Maven project that depends on an artifact of RocketMQ."""
    return _POM.format(version=version, artifact=artifact)


def copy_command(folder: Path) -> list[str]:
    """The command that copies the jars of the project in its working directory to `folder`."""
    return [
        "mvn", "--batch-mode", "--quiet", "--no-transfer-progress", COPY_DEPENDENCIES,
        "-DincludeScope=runtime", f"-DoutputDirectory={folder}",
    ]  # fmt: skip


def java_tool(name: str) -> str:
    """`java` or `javac` as Maven finds them: of JAVA_HOME if that is set, else on the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / name) if home else name


def cache_folder() -> Path:
    """Where jars are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trioha-interop"


def missing_jdk() -> str | None:
    """Why a Java source file cannot be run on this machine; None if it can."""
    for tool in ("java", "javac"):
        if shutil.which(java_tool(tool)) is None:
            return f"there is no `{tool}`"
    command = [java_tool("javac"), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's JDK
    printed = (done.stdout + done.stderr).strip()
    found = re.search(r"javac (\d+)", printed)
    if found is None or int(found[1]) < JDK_MAJOR_MIN:
        return f"`javac -version` prints {printed or 'nothing'}"
    return None


async def client_jars(*, log: Callable[[str], None]) -> Path:
    """The folder with the jars of RocketMQ's client.

    If it is not there, Maven fetches it, and `log` gets a line.

    Raises JarsError without a JDK, without Maven, or if Maven fails. Cancellation ends Maven.
    """
    missing = await trio.to_thread.run_sync(missing_jdk)
    if missing is not None:
        raise JarsError(missing)
    folder = cache_folder() / f"{VERSION}-client"
    text = pom(VERSION, artifact="rocketmq-client")
    if _has(folder, text):
        return folder / "lib"
    if shutil.which("mvn") is None:
        raise JarsError("there is no `mvn`")
    log(f"fetching RocketMQ {VERSION}'s client from Maven Central, once")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            (made / "pom.xml").write_text(text)
            await _run_maven(made)
            if not _has(folder, text):
                # Of another release of trioha, or of a run at the same time.
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
    except OSError as error:
        raise JarsError(f"{folder}: {error.strerror}") from None
    return folder / "lib"


def _has(folder: Path, text: str) -> bool:
    """Whether `folder` has the jars of the project `text`."""
    try:
        return (folder / "pom.xml").read_text() == text and any(
            (folder / "lib").glob("rocketmq-client-*.jar")
        )
    except OSError:
        return False


async def _run_maven(folder: Path) -> None:
    """Copy jars to `folder`/lib. Raises JarsError."""
    with trio.move_on_after(FETCH_TIMEOUT_S):
        done = await trio.run_process(
            copy_command(folder / "lib"),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            start_new_session=True,
        )
        if done.returncode != 0:
            lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
            raise JarsError(f"`mvn` ended with {done.returncode}: {lines[0] if lines else 'without a word'}")
        return
    raise JarsError(f"`mvn` did not end within {FETCH_TIMEOUT_S:.0f} s")
