"""Find the Java that runs Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trioha.errors import TriohaError

JAVA_VERSION_MIN: Final = 17
"""Oldest Java that PySpark 4 runs on."""
ANSWER_TIMEOUT_S: Final = 30.0
HINT: Final = f"install Java {JAVA_VERSION_MIN} or newer (a JRE is enough), or set JAVA_HOME to one"


class JavaError(TriohaError):
    """No Java that Spark can use."""


def require_java() -> Path:
    """The `java` of JAVA_HOME, else the one on the PATH.

    Raises JavaError with a hint what to install, if neither is version 17 or newer.
    """
    seen: list[str] = []
    for java in _candidates():
        version = _version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return java
        seen.append(f"{java} is " + (f"version {version}" if version else "not a working Java"))
    if not seen:
        raise JavaError(f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none; {HINT}")
    raise JavaError(f"Spark needs Java {JAVA_VERSION_MIN} or newer, but {', and '.join(seen)}; {HINT}")


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)


def _version(java: Path) -> int | None:
    """Feature version: 8 for "1.8.0_412", 17 for "17.0.15". None if `java` prints none."""
    try:
        answer = subprocess.run(  # noqa: S603 (the user's own Java)
            [java, "-version"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb'version "(?:1\.)?(\d+)', answer.stdout)
    return int(found[1]) if found else None
