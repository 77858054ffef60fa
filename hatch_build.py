"""Compile the hot loops, where a C compiler is, and put `configs` into a wheel: a build hook.

These are the `compiled_*.py` of `trioha/store`, `trioha/recording` and `trioha/remoting`, which mypyc
compiles, and `trioha/store/system.c`. Hatchling calls it for wheels and for editable installs; `python
hatch_build.py` compiles in the source tree alone, as `make setup` does after an edit. A module lies beside
its source as `_compiled_records` or `_system`, with this Python and platform in its name, so that several
Pythons can share a source tree. It carries the SHA-256 of its source; `trioha.compiled` does not use one of
another source.

Without a C compiler, or with `TRIOHA_PURE=1`, nothing is compiled, and a wheel is pure (`py3-none-any`).
Where the compilation fails although a compiler is there, its output is printed, and the install goes on with
plain Python: a node needs no more.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parent
SOURCES: Final = (
    "trioha/recording/compiled_events.py",
    "trioha/remoting/compiled_pulls.py",
    "trioha/remoting/compiled_sends.py",
    "trioha/store/compiled_index.py",
    "trioha/store/compiled_records.py",
    "trioha/store/compiled_runs.py",
    "trioha/store/system.c",
)
HASH_LINE: Final = 'SOURCE_SHA256: Final = ""'
BUILD_REQUIREMENTS: Final = ("mypy>=2.4", "setuptools>=77")

COMPILE: Final = """
import sys
from setuptools import Distribution, Extension
source, name, sha256 = sys.argv[1:]
if source.endswith(".py"):
    from mypyc.build import mypycify
    modules = mypycify(["--config-file=", source], opt_level="3", debug_level="0")
else:
    macros = [("SOURCE_SHA256", f'"{sha256}"')]
    flags = ["-O3", "-Wall", "-Wextra"]
    modules = [Extension(name, [source], define_macros=macros, extra_compile_args=flags)]
command = Distribution({"name": name, "ext_modules": modules}).get_command_obj("build_ext")
command.inplace = True
command.ensure_finalized()
command.run()
"""


def has_compiler() -> bool:
    """Whether a C compiler and this Python's headers are there, and plain Python is not asked for."""
    if os.environ.get("TRIOHA_PURE", "") not in {"", "0"} or sys.implementation.name != "cpython":
        return False
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return headers.is_file() and shutil.which(command.split()[0]) is not None


def missing_requirements() -> list[str]:
    """What has to be installed before this Python can compile modules."""
    missing = []
    for text in BUILD_REQUIREMENTS:
        requirement = Requirement(text)
        try:
            is_there = requirement.specifier.contains(version(requirement.name))
        except PackageNotFoundError:
            is_there = False
        if not is_there:
            missing.append(text)
    return missing


def sources() -> list[Path]:
    """The sources that are compiled."""
    return [source for name in SOURCES if (source := ROOT / name).is_file()]


def module_path(source: Path) -> Path:
    """Where the compiled module of one for this Python lies in the source tree."""
    return source.with_name(f"_{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}")


def source_hash(source: Path) -> str:
    """SHA-256 of the source of one."""
    return hashlib.sha256(source.read_bytes()).hexdigest()


def compile_module(source: Path, target: Path) -> bool:
    """Compile one to `target`, in one step; False if that is not possible here.

    An older module stays where it fails: it names another source then, and is not used.
    """
    if not has_compiler():
        return False
    if missing := missing_requirements():
        print(
            f"trioha: to compile modules install {', '.join(missing)} (in a checkout: make setup); "
            "trioha runs in plain Python",
            file=sys.stderr,
        )
        return False
    text = source.read_text(encoding="utf-8")
    name, sha256 = f"_{source.stem}", source_hash(source)
    if source.suffix == ".py":
        assert text.count(HASH_LINE) == 1, f"{source} has no line {HASH_LINE}"
        text = text.replace(HASH_LINE, f'{HASH_LINE[:-2]}"{sha256}"')
    with tempfile.TemporaryDirectory(prefix="trioha-compile-") as temporary:
        folder = Path(temporary)
        copy = folder / f"{name}{source.suffix}"
        copy.write_text(text, encoding="utf-8")
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", COMPILE, copy.name, name, sha256],
            cwd=folder,
            # Each imports `trioha.compiled`.
            env=os.environ | {"MYPYPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        made = list(folder.glob(f"{name}.*{sysconfig.get_config_var('EXT_SUFFIX').rsplit('.', 1)[-1]}"))
        if done.returncode or len(made) != 1:
            print(done.stdout, file=sys.stderr)
            print("trioha: a module could not be compiled; trioha runs in plain Python", file=sys.stderr)
            return False
        # Two builds at once do not write to one file.
        unnamed = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(made[0], unnamed)
        unnamed.replace(target)
    return True


def is_current(source: Path, target: Path) -> bool:
    """Whether the module at `target` was made from the source as it is now."""
    return target.is_file() and source_hash(source).encode() in target.read_bytes()


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `configs` to a wheel, and the compiled code to a wheel or an editable install."""

    _folder = ""
    """Of modules that were compiled for a wheel only."""

    def dependencies(self) -> list[str]:
        """What the build needs, for an isolated one."""
        return list(BUILD_REQUIREMENTS) if has_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; for an editable install into the source tree, where they are imported from."""
        if version == "editable":
            compile_all()
            return
        # Not in an editable install: there a folder of the package's name would hide the package.
        build_data["force_include"]["configs"] = "trioha/configs"
        if not has_compiler():
            return
        made = [path for source in sources() if (path := self._module_for_wheel(source)) is not None]
        if len(made) < len(sources()):
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for source, path in zip(sources(), made, strict=True):
            build_data["force_include"][str(path)] = str(module_path(source).relative_to(ROOT))

    def _module_for_wheel(self, source: Path) -> Path | None:
        """A current module, compiled if there is none; None if that is not possible."""
        target = module_path(source)
        if is_current(source, target):
            return target
        self._folder = self._folder or tempfile.mkdtemp(prefix="trioha-wheel-")
        made = Path(self._folder) / f"{source.parent.name}{target.name}"
        return made if compile_module(source, made) else None

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what `initialize` left for the wheel."""
        if self._folder:
            shutil.rmtree(self._folder)


def compile_all() -> None:
    """Compile in the source tree each source whose module is missing or of another source."""
    for source in sources():
        target = module_path(source)
        if not is_current(source, target) and not compile_module(source, target):
            # The others would fail for the same reason.
            return


if __name__ == "__main__":
    compile_all()
