"""Both ways in which compiled code runs, in one process: compiled, and as they stand (`trioha.compiled`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from trioha.compiled import COMPILED, MODULES, description

IS_COMPILED = description() == COMPILED
needs_compiled = pytest.mark.skipif(not IS_COMPILED, reason=f"the code is {description()}")
WAYS = [pytest.param(False, id="plain"), pytest.param(True, id="compiled", marks=needs_compiled)]


def plain_copy(module: ModuleType) -> ModuleType:
    """A module as it stands, under a name that keeps it so."""
    assert module.__file__ is not None
    spec = spec_from_file_location("_plain", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def _own(module: ModuleType, name: str) -> dict[str, object]:
    """The functions and classes of the module that were defined in the one of that name."""
    return {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == name}


_MODULES = [import_module(name) for name in MODULES]
_PLAIN = [(module, _own(plain_copy(module), "_plain")) for module in _MODULES]
_USED = [{key: getattr(module, key) for key in plain} for module, plain in _PLAIN]


@contextmanager
def compiled_code(*, is_compiled: bool) -> Iterator[None]:
    """Run compiled code, or all as they stand."""
    if not is_compiled:
        for module, plain in _PLAIN:
            vars(module).update(plain)
    try:
        yield
    finally:
        for module, used in zip(_MODULES, _USED, strict=True):
            vars(module).update(used)
