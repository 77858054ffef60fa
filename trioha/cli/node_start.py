"""Starts `trioha node` without what only other commands, and other arguments, need.

Slaves and clients wait until a node that was restarted is ready, and nearly all CPU time from its process to
its ready line is that of imports. So the usual arguments are read here, without the parser of all commands
(cyclopts). That parser reads all others, and explains what is wrong with them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

_CONFIG: Final = frozenset(("-c", "--config"))
_SETTING: Final = frozenset(("-p", "--set"))


class NodeArguments(NamedTuple):
    """The arguments of `trioha node`."""

    config: Path | None
    """None without a broker.conf."""
    settings: tuple[str, ...]
    with_namesrv: bool


def usual_arguments(tokens: Sequence[str]) -> NodeArguments | None:
    """The arguments after `node` if all are written as `-c FILE`, `-p KEY=VALUE` or `--with-namesrv`.

    The names may be the long ones. None for all else, right or wrong: the parser of all commands reads it.
    """
    config: Path | None = None
    settings: list[str] = []
    with_namesrv = False
    rest = iter(tokens)
    for name in rest:
        if name == "--with-namesrv" and not with_namesrv:
            with_namesrv = True
            continue
        value = next(rest, "")
        if not value or value.startswith("-"):
            return None
        if name in _CONFIG and config is None:
            config = Path(value)
        elif name in _SETTING:
            settings.append(value)
        else:
            return None
    return NodeArguments(config, tuple(settings), with_namesrv)


def start_node(arguments: NodeArguments) -> int:
    """Import a node and run it; returns its exit code. Raises TriohaError."""
    # Nothing that is imported becomes garbage: a collection, some 150 of them, would only visit it again.
    gc.disable()
    # For tracebacks that a node does not print, and for log methods that it does not await: most of what
    # structlog costs.
    with _not_found("rich"), imported_on_use("asyncio"):
        import structlog  # noqa: F401, PLC0415
    from trioha.node.process import run_process  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    return run_process(arguments.config, arguments.settings, with_namesrv=arguments.with_namesrv)


@contextmanager
def _not_found(package: str) -> Iterator[None]:
    """Optional imports of `package` find none meanwhile; one that is loaded already stays."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


class _ImportedOnUse(ModuleType):
    """In the place of the module of its name, which it imports when one of its names is used."""

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(self.__name__) is self:
            # From Python 3.12 on a record of logging, which structlog makes, asks for `current_task`.
            raise AttributeError(
                f"{self.__name__}.{name} is used while others are imported", name=name, obj=self
            )
        return getattr(import_module(self.__name__), name)


@contextmanager
def imported_on_use(module: str) -> Iterator[None]:
    """Who imports `module` meanwhile gets it when it is used; one that is loaded already stays."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = _ImportedOnUse(module)
    try:
        yield
    finally:
        del sys.modules[module]
