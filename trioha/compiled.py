"""Modules that run compiled where they were compiled, and as they stand otherwise.

Each `compiled_*.py` is typed Python: the build (`hatch_build.py`) compiles a copy of it by mypyc, as
`_<name>` beside it, where a C compiler is found. `store/system.py` has the same functions in Python as
`system.c`, which is compiled in the same way. Each of these modules calls `use_compiled` at its end, which
replaces its functions and classes by those of the compiled module. So callers import a module as any other,
and nothing but `description` says how it runs.

A compiled module is used only if it was made from the source that lies beside it: it names the SHA-256 of
that, so an edited source is never shadowed by an older module. `TRIOHA_PURE=1` in the environment chooses
plain Python.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

PURE_VARIABLE: Final = "TRIOHA_PURE"
COMPILED: Final = "compiled"
PURE: Final = "pure"
_ROOT: Final = Path(__file__).parent
MODULES: Final = (
    "trioha.recording.compiled_events",
    "trioha.remoting.compiled_pulls",
    "trioha.remoting.compiled_sends",
    "trioha.store.compiled_index",
    "trioha.store.compiled_records",
    "trioha.store.compiled_runs",
    "trioha.store.system",
)


def use_compiled(name: str) -> None:
    """Replace the functions and classes of the module `name`, which is being imported, by compiled ones.

    They stay if nothing is compiled, or if this is the compiled copy itself.
    """
    folder, _, stem = name.rpartition(".")
    if stem.startswith("_"):
        return
    source = sys.modules[name]
    found, _ = find(f"{folder}._{stem}", source=source_of(name))
    for key, value in list(vars(source).items()):
        if found is not None and getattr(value, "__module__", None) == name:
            setattr(source, key, getattr(found, key))


def source_of(name: str) -> Path:
    """The file that the compiled module of `name` is made from: C, if there is some, or Python."""
    path = _ROOT.joinpath(*name.split(".")[1:]).with_suffix(".c")
    return path if path.is_file() else path.with_suffix(".py")


def find(module: str, *, source: Path, env: Mapping[str, str] = os.environ) -> tuple[ModuleType | None, str]:
    """The compiled module and "compiled", or None and "pure", with the reason if it is not the usual one."""
    if env.get(PURE_VARIABLE, "") not in {"", "0"}:
        return None, f"{PURE}, {PURE_VARIABLE} is set"
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        return None, PURE if error.name == module else f"{PURE}, the compiled code needs {error.name}"
    except (ImportError, ValueError) as error:
        # Of another version of librt.
        return None, f"{PURE}, the compiled code cannot be loaded: {error}"
    if source.is_file() and hashlib.sha256(source.read_bytes()).hexdigest() != found.SOURCE_SHA256:
        return None, f"{PURE}, the compiled code is of another {source.name}: run make setup"
    return found, COMPILED


def description() -> str:
    """For people: "compiled", or "pure" with the reason, of the first module that is not compiled."""
    for name in MODULES:
        folder, _, stem = name.rpartition(".")
        _, found = find(f"{folder}._{stem}", source=source_of(name))
        if found != COMPILED:
            return found
    return COMPILED
