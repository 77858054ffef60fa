"""The compiled kernel, if there is one: the loops of `kernel.py`, and what `system.c` adds to Python.

The build compiles them as `_kernel` and `_system`, where a C compiler is found. A compiled module is used
only if it was made from the source that lies beside it: it names the SHA-256 of that, so an edited source is
never shadowed by an older module. Without both the same work is done in plain Python; `DESCRIPTION` says
which, and why. `TRIOHA_PURE=1` in the environment chooses plain Python.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

PURE_VARIABLE: Final = "TRIOHA_PURE"
SOURCE: Final = Path(__file__).with_name("kernel.py")
COMPILED: Final = "compiled"
PURE: Final = "pure"

COPY_BYTES: Final = 128 * 1024
"""The kernel reads `bytes`, so stretches of a log are copied for it: as much as stays in a core's cache."""
LONG_RECORD_BYTES: Final = 8 * 1024
"""To copy a record of this length costs more than the kernel saves."""


def load(
    module: str = "trioha.store._kernel", *, source: Path = SOURCE, env: Mapping[str, str] = os.environ
) -> tuple[ModuleType | None, str]:
    """The compiled module and "compiled", or None and "pure", with the reason if it is not the usual one."""
    if env.get(PURE_VARIABLE, "") not in {"", "0"}:
        return None, f"{PURE}, {PURE_VARIABLE} is set"
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        # Not compiled, or without librt, which a compiled one needs.
        return None, PURE if error.name == module else f"{PURE}, the compiled kernel needs {error.name}"
    except (ImportError, ValueError) as error:
        # Of another version of librt.
        return None, f"{PURE}, the compiled kernel cannot be loaded: {error}"
    if source.is_file() and hashlib.sha256(source.read_bytes()).hexdigest() != found.SOURCE_SHA256:
        return None, f"{PURE}, the compiled kernel is of another {source.name}: run make setup"
    return found, COMPILED


_found, _description = load()
_found_system, _system_description = load("trioha.store._system", source=SOURCE.with_name("system.c"))
IS_COMPILED = _found is not None and _found_system is not None
"""Whether `kernel` and `system` are there. A name of this module: tests run both ways in one process."""
DESCRIPTION: Final = _description if _found is None else _system_description
"""For people: "compiled", or "pure" with the reason."""

if TYPE_CHECKING:
    from trioha.store import _system
    from trioha.store import kernel as kernel  # noqa: PLC0414

    system = _system
else:
    kernel = _found
    system = _found_system
