"""The parser of all commands and their help, written for the width of the terminal (cyclopts).

`trioha node` with its usual arguments starts without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from inspect import cleandoc

from cyclopts import App, Group, Parameter

from trioha import __version__
from trioha.cli import COMMANDS, GROUPS


def _version() -> str:
    """The version, and how the loops over records run."""
    # No other command's start waits for it.
    from trioha.compiled import description  # noqa: PLC0415

    return f"{__version__} (kernel: {description()})"


def command_line(called: str | None) -> App:
    """All commands; the help of `called` is its docstring, that of the others their summary."""
    app = App(
        name="trioha",
        help="A RocketMQ-compatible replica that needs no JVM and never lies about an acknowledgement.",
        version=_version,
        help_format="plaintext",
        default_parameter=Parameter(negative=(), show_default=shown_default),
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_int_as_exit_code_else_zero",
    )
    if called in COMMANDS:
        for function in functions_of(called).values():
            function.__doc__ = unwrapped(function.__doc__ or "")
    for title, commands in GROUPS.items():
        group = Group(title, sort_key=list(GROUPS).index(title))
        for command, summary in commands.items():
            shown = None if command == called else summary
            app.command(_path_of(command), name=command, help=shown, group=group)
    app.register_install_completion_command(group=Group("Options", sort_key=len(GROUPS)))
    app["--help"].group = app["--version"].group = "Options"
    return app


def _path_of(command: str) -> str:
    name = command.replace("-", "_")
    return f"trioha.cli.{name}:{name}"


def functions_of(command: str) -> dict[str, Callable[..., object]]:
    """The functions of a command by how they are called: one, or one for each of its own commands."""
    module, _, name = _path_of(command).partition(":")
    found = getattr(import_module(module), name)
    if not isinstance(found, App):
        return {command: found}
    names = [one for one in found if not one.startswith("-")]
    return {f"{command} {one}": function for one in names if (function := found[one].default_command)}


def unwrapped(docstring: str) -> str:
    """A docstring with each paragraph, and each parameter's text, in one line: terminals wrap it."""
    lines: list[str] = []
    for line in cleandoc(docstring).splitlines():
        last = lines[-1] if lines else ""
        indent, last_indent = len(line) - len(line.lstrip()), len(last) - len(last.lstrip())
        is_rule = line.startswith("---") or last.startswith("---")
        if line and last and indent == last_indent and not is_rule and not line.lstrip().startswith("- "):
            lines[-1] = f"{last} {line.lstrip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def shown_default(value: object) -> str | None:
    """A default in the help, where it says something: no flag that is off, no empty list, no endless time."""
    if value is None or isinstance(value, bool) or value in ((), math.inf):
        return None
    if isinstance(value, Enum):
        return str(value.value)
    return f"{value:g}" if isinstance(value, float) else str(value)
