"""Builds the file system of trioha's image without a container engine, and runs commands in it as one would.

The steps are those of configs/container/Containerfile. This machine stands for Python's own image: its /usr
and its Python are mounted read-only below a new root. A command runs with its own mounts and processes
(unshare), as the image's user, without capabilities, and with a root that nobody can write to; the network is
the machine's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from tests.deployment.containerfile import ROOT, Stage, copied, stages
from tests.faults.disks import private_mounts
from tests.processes import DIE_WITH_PARENT

BUILD_WITHIN_S: Final = 1800.0
"""For one RUN: packages come from an index."""
_SETTINGS: Final = (
    "alternatives",
    "group",
    "hosts",
    "ld.so.cache",
    "nsswitch.conf",
    "passwd",
    "pip.conf",
    "resolv.conf",
    "ssl",
)
"""Of /etc: what programs and pip need."""
_PYTHON: Final = Path(sys.base_prefix)
_PIP_CACHE: Final = Path.home() / ".cache/pip"
_CACHE: Final = re.compile(r"--mount=type=cache,target=(?P<target>\S+)\s+")
"""The option of a RUN that keeps a cache between builds."""


def why_not() -> str:
    """Why no image can be built here; empty if one can."""
    if not private_mounts():
        return "only root may have mounts of its own (unshare --mount)"
    if missing := [tool for tool in ("chroot", "setpriv") if shutil.which(tool) is None]:
        return f"these commands are missing: {', '.join(missing)}"
    if not (_PYTHON / "bin/python").exists():
        return f"{_PYTHON / 'bin'} has no command named python, as Python's image has"
    return ""


@frozen
class Image:
    """The file system, and what the Containerfile says of its use."""

    root: Path
    stage: Stage
    """The last one."""

    def command(self, *words: str, volume: Path, settings: Path) -> list[str]:
        """A command for `words` in a container: `volume` is its VOLUME, `settings` are at /etc/trioha.

        Its process is number 1 of its own processes.
        """
        mounts = [
            _bound(volume, self.root / self.stage.one("VOLUME").text.lstrip("/")),
            _bound(settings, self.root / "etc/trioha"),
            f"mount -o remount,bind,ro {shlex.quote(str(self.root))}",
        ]
        user, _, group = self.stage.one("USER").text.partition(":")
        privileges = [
            "setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs",
            "--bounding-set=-all", "--inh-caps=-all", "--",
        ]  # fmt: skip
        place = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", self.stage.one("WORKDIR").text]
        return _in_root(
            self.root, [*privileges, *place, *words], variables=self.stage.variables, mounts=mounts
        )

    @property
    def entrypoint(self) -> list[str]:
        """What its commands are arguments of."""
        return self.stage.one("ENTRYPOINT").json_words()

    @property
    def health_check(self) -> list[str]:
        """The command that says whether a container is well."""
        return self.stage.one("HEALTHCHECK").json_words()


def build(root: Path) -> Image:
    """Build the image at `root`, which is made. Raises AssertionError with the output of a failed step."""
    build_stage, last = stages()
    _make_root(root)
    workdir = root / build_stage.one("WORKDIR").text.lstrip("/")
    workdir.mkdir()
    for sources, target in copied(build_stage):
        for source in sources:
            to = workdir / target / ("" if target.rstrip("/").endswith(source) else source)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(ROOT / source, to)
    for stage, place in ((build_stage, workdir), (last, root)):
        for each in stage.all("RUN"):
            # What Debian's packages give is this machine's.
            if not each.text.startswith("apt-get "):
                _run(root, place, each.text, variables=stage.variables if stage is build_stage else {})
        if stage is build_stage:
            shutil.rmtree(workdir)
    for each in (root / "tmp").iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    (root / "etc/trioha").mkdir()
    return Image(root, last)


def _make_root(root: Path) -> None:
    """The folders that a system has, and those of its settings that programs need."""
    for name in ("dev", "etc", "opt", "proc", "tmp", "var/lib", "usr"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        here = Path("/", name)
        if here.is_symlink():
            (root / name).symlink_to(here.readlink())
        elif here.exists():
            (root / name).mkdir()
    if not _PYTHON.is_relative_to("/usr"):
        (root / _PYTHON.relative_to("/")).mkdir(parents=True)
    for name in _SETTINGS:
        here = Path("/etc", name)
        if here.is_dir():
            shutil.copytree(here, root / "etc" / name, symlinks=True)
        elif here.exists():
            shutil.copy(here, root / "etc" / name)


def _in_root(
    root: Path, words: Sequence[str], *, variables: Mapping[str, str], mounts: Sequence[str] = ()
) -> list[str]:
    """A command for `words` in `root`, with what this machine gives read-only, and after `mounts`."""
    given = [
        Path("/usr"),
        *(path for name in ("bin", "sbin", "lib", "lib64") if not (path := Path("/", name)).is_symlink()),
    ]
    if not _PYTHON.is_relative_to("/usr"):
        given.append(_PYTHON)
    lines = ["set -e", _bound(root, root)]
    for path in given:
        if path.exists():
            inside = root / path.relative_to("/")
            lines += [_bound(path, inside), f"mount -o remount,bind,ro {shlex.quote(str(inside))}"]
    lines += [
        _bound(Path("/dev"), root / "dev"),
        f"mount -t proc proc {shlex.quote(str(root / 'proc'))}",
        *mounts,
    ]
    environment = [f"{name}={value}" for name, value in variables.items()]
    lines.append(shlex.join(["exec", "chroot", str(root), "env", "-i", *environment, *words]))
    unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--"]
    return [*DIE_WITH_PARENT, *unshare, "sh", "-c", "\n".join(lines)]


def _bound(path: Path, inside: Path) -> str:
    return f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(inside))}"


def _run(root: Path, place: Path, text: str, *, variables: Mapping[str, str]) -> None:
    """A step of the Containerfile, as root, with this machine's package index and cache of pip."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy") or name == "TRIOHA_PURE"
    }
    path = {"PATH": f"{_PYTHON / 'bin'}:/usr/bin:/bin", "HOME": "/root"}
    mounts = []
    if (option := _CACHE.match(text)) is not None:
        text = text[option.end() :]
        if _PIP_CACHE.is_dir():
            cache = root / option["target"].lstrip("/")
            cache.mkdir(parents=True, exist_ok=True)
            mounts.append(_bound(_PIP_CACHE, cache))
    inside = "/" + str(place.relative_to(root))
    script = f"cd {shlex.quote(inside)} && umask 022 && {text}"
    done = subprocess.run(
        _in_root(root, ["sh", "-c", script], variables={**inherited, **path, **variables}, mounts=mounts),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
