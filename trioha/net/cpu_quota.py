"""The CPU quota of the control groups that this process is in, as containers have it.

A process with a quota sees all cores of its machine, but may use only so much CPU time in each period, 100 ms
as a rule: when its threads have used it up, the kernel stops all of them until the next period.

| cgroup version | file | content | without a limit |
|---|---|---|---|
| 2 | `cpu.max` | `quota period`, microseconds | `max period` |
| 1 | `cpu.cfs_quota_us`, `cpu.cfs_period_us` | one number each, microseconds | -1 |

Each group of the hierarchy has a limit of its own, and all apply: the least counts, from the process's own
group up to the top of what is mounted. A container may see only a part of the hierarchy: its mount says which
group is at the top.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

PROC = Path("/proc/self")


@cache
def cpu_quota(proc: Path = PROC) -> float:
    """Cores' worth of CPU time that this process may use, infinite without a limit. Read once, then known.

    Not on Linux, or where control groups cannot be read, there is no limit. `proc` is the process's folder.
    """
    try:
        paths = dict(_paths((proc / "cgroup").read_text()))
        groups = list(_groups((proc / "mountinfo").read_text(), paths))
    except (OSError, ValueError):
        return math.inf
    return min(map(_quota, groups), default=math.inf)


def _paths(text: str) -> Iterator[tuple[str, str]]:
    """The process's group in each hierarchy, by controller; that of version 2 has none."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _groups(mounts: str, paths: dict[str, str]) -> Iterator[Path]:
    """Folders of the groups that this process is in, as far as they are mounted."""
    for line in mounts.splitlines():
        mounted, _, kind = line.partition(" - ")
        filesystem, *_, options = kind.split(" ")
        if filesystem == "cgroup2":
            path = paths.get("")
        elif filesystem == "cgroup" and "cpu" in options.split(","):
            path = paths.get("cpu")
        else:
            continue
        if path is None:
            continue
        top, mount_point = map(_unescaped, mounted.split(" ")[3:5])
        group = Path(mount_point)
        yield group
        for name in _below(top, path):
            group /= name
            yield group


def _below(top: str, path: str) -> tuple[str, ...]:
    """Names of the groups from `top` to `path`; none if `path` is not below it, as seen from a container."""
    group = PurePosixPath(path)
    if ".." in group.parts or not group.is_relative_to(top):
        return ()
    return group.relative_to(top).parts


def _unescaped(text: str) -> str:
    """A path of mountinfo, in which blanks are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _quota(group: Path) -> float:
    """The limit of one group in cores, infinite if it has none."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        quota_us, period_us = int(quota), int(period)
    except (OSError, ValueError):
        # `max` is not a number, and the top of a machine's hierarchy has no such file.
        return math.inf
    return quota_us / period_us if quota_us > 0 and period_us > 0 else math.inf
