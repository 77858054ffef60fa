"""Where and how a run was measured: what stands beside its figures."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trioha
from tests.interop.rocketmq import java_tool
from trioha.store import compiled

ORDER: Final = "rivals in turn, the order reversed in every other round"


def conditions() -> dict[str, object]:
    """Of this machine and this Python, as JSON has them."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memoryGB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
        "python": platform.python_version(),
        "trioha": trioha.__version__,
        "kernel": compiled.DESCRIPTION,
    }


def java_version() -> str:
    """Of the JVM that the rival runs in."""
    said = subprocess.run([java_tool("java"), "-version"], capture_output=True, text=True, check=True)
    found = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    return found[1] if found else "?"


def described(run: Mapping[str, Any]) -> str:
    """Some sentences for below a table."""
    runs = f"{run['runs']} runs, each of " if run.get("runs", 1) > 1 else ""
    return (
        f"{run['date']}, {run['cores']} cores of {run['cpu']}, {run['memoryGB']} GB, "
        f"CPython {run['python']}, trioha {run['trioha']} (kernel: {run['kernel']}), "
        f"RocketMQ {run['rocketmq']} on Java {run['java']}. "
        f"Medians of {runs}{_counted(run['rounds'], 'round')} "
        f"after {_counted(run['warmUpRounds'], 'round')} that warmed the JVMs up; {run['order']}. "
        "In brackets the lowest and the highest value where they differ by more than 20 %. load: highest "
        "1-minute average, the benchmark included; others: cores busy with other processes."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
