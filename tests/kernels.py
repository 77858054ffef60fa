"""Both ways in which the kernels run, in one process: compiled, and as they stand (`trioha.compiled`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from unittest.mock import patch

import pytest

from trioha.compiled import COMPILED, MODULES, description

IS_COMPILED = description() == COMPILED
needs_kernel = pytest.mark.skipif(not IS_COMPILED, reason=f"the kernel is {description()}")
WAYS = [pytest.param(False, id="plain"), pytest.param(True, id="compiled", marks=needs_kernel)]


def plain_copy(module: ModuleType) -> ModuleType:
    """A kernel as it stands, under a name that keeps it so."""
    assert module.__file__ is not None
    spec = spec_from_file_location("_plain", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


_PLAIN = [(module, plain_copy(module)) for module in map(import_module, MODULES)]


@contextmanager
def kernels(*, is_compiled: bool) -> Iterator[None]:
    """Run compiled kernels, or all as they stand."""
    with ExitStack() as stack:
        for module, plain in [] if is_compiled else _PLAIN:
            own = {key: value for key, value in vars(plain).items() if _is_of(value, plain)}
            stack.enter_context(patch.multiple(module, **own))
        yield


def _is_of(value: object, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__
