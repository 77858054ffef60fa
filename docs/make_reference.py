"""Writes docs/reference: settings, commands and events, from the code that has them.

`python docs/make_reference.py` writes the pages; a test compares them with what it would write. A setting's
row is its declaration with the docstring under it, a command's part is its docstring and its options, an
event's row is the docstring of its kind.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs
from attrs import frozen
from cyclopts import Parameter

FOLDER: Final = Path(__file__).parent / "reference"
sys.path.insert(0, str(FOLDER.parents[1]))

from trioha.cli import GROUPS  # noqa: E402 - the checkout's, not an installed one
from trioha.cli.app import command_line, functions_of, shown_default, unwrapped  # noqa: E402
from trioha.config import broker, rocketmq_keys  # noqa: E402
from trioha.config import values as parsers  # noqa: E402
from trioha.config.update import value_text  # noqa: E402
from trioha.namesrv import settings as name_server  # noqa: E402
from trioha.recording import events  # noqa: E402
from trioha.store import put_status  # noqa: E402

OPTIONS: Final = Parameter(negative=(), show_default=shown_default)
"""As of the commands."""
MADE_BY: Final = "<!-- Written by docs/make_reference.py from the code: edit the docstrings there. -->"
ROOMS: Final = (broker.BrokerConfig, *reversed(broker.BrokerConfig.__bases__))
"""The classes that declare the settings of a node."""
UNITS: Final = {
    "Milliseconds": "ms", "Seconds": "s", "Minutes": "min", "Hours": "h", "Bytes": "bytes", "Percent": "%",
}  # fmt: skip
EVENT_CODES: Final = (
    events.HaState, events.Direction, put_status.PutStatus, events.CloseReason, events.LinkEvent,
    events.GroupRole, events.SetEvent, events.ControllerEvent,
)  # fmt: skip
"""What `flags` of some kinds of events says."""
SETTINGS_TEXT: Final = """
Keys of a `broker.conf`, or `-p key=value` of `trioha node`. *Of* says since which RocketMQ a key is
RocketMQ's (5.x: since 5.3 or before); keys that begin with `trioha.` are trioha's own. *As said*: the
meaning says what the default is. Values that make no sense are refused with file, line and reason. Which
settings change in a running node: [mqadmin.md](../mqadmin.md#settings).
""".strip()
UNUSED_TEXT: Final = """
{} more keys of RocketMQ 4.9.7 to 5.5.0 are accepted with a warning. So are these, which no broker reads:
""".strip()
NAME_SERVER_TEXT: Final = """
Keys of a `namesrv.conf`, or `-p key=value` of `trioha namesrv` ([name-server.md](../name-server.md)).
""".strip()
COMMANDS_TEXT: Final = """
As `trioha COMMAND --help` says it. Exit codes: 0 if all is well, 1 for what a command says of it, 2 for
arguments, files or peers that cannot be used (one line on stderr), 130 after Ctrl-C.
""".strip()
EVENTS_TEXT: Final = """
Kinds of records, and what their fields say; [session-format.md](../session-format.md) has the record byte by
byte, and what holds of each kind.
""".strip()


def text_of(docstring: str) -> str:
    """A docstring in one line that a cell of a table may hold."""
    return " ".join(docstring.split()).replace("|", "\\|")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def members_of(node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
    """The statements of a class, each with the docstring under it or nothing."""
    for statement, following in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        match following:
            case ast.Expr(ast.Constant(str(docstring))):
                yield statement, docstring
            case _:
                yield statement, ""


def class_of(module: ModuleType, name: str) -> ast.ClassDef:
    """A class of a module, as it is written."""
    tree = ast.parse(inspect.getsource(module))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def values_of(kind: type[Enum]) -> dict[str, str]:
    """The docstrings of an enumeration's members, by name."""
    module = import_module(kind.__module__)
    return {
        statement.targets[0].id: text_of(docstring)
        for statement, docstring in members_of(class_of(module, kind.__name__))
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }


# -- settings ----------------------------------------------------------------------------------------------


@frozen
class Key:
    """A setting as the reference shows it."""

    key: str
    default: str
    values: str
    unit: str
    since: str
    meaning: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Of its row."""
        return (f"`{self.key}`", self.default, self.values, self.unit, self.since, self.meaning)


TITLES: Final = ("key", "default", "values", "unit", "of", "meaning")


def keys_of(module: ModuleType, name: str, *, factory: str, kind: type, keys: Mapping[str, str]) -> list[Key]:
    """The settings that a class of a module declares by calls of `factory`; `kind` has them all.

    `keys` by attribute: docstrings speak of attributes.
    """
    fields = {field.name: field for field in attrs.fields(kind)}
    found = []
    for statement, docstring in members_of(class_of(module, name)):
        match statement:
            case ast.AnnAssign(ast.Name(attribute), value=ast.Call(ast.Name(called), arguments)) if (
                called == factory
            ):
                meaning = re.sub(
                    r"`(\w+)`", lambda match: f"`{keys.get(match[1], match[1])}`", text_of(docstring)
                )
                key = keys[attribute]
                unit = UNITS.get(meaning.split(" ")[0], "")
                values, explained = accepted(arguments[1], module)
                default = default_text(fields[attribute].default, unit)
                found.append(Key(key, default, values, unit, since(key), f"{meaning}{explained}"))
    return found


def accepted(parser: ast.expr, module: ModuleType) -> tuple[str, str]:
    """What a parser accepts, in short, and what the names mean that it has."""
    name = parser.func if isinstance(parser, ast.Call) else parser
    kind = name.attr if isinstance(name, ast.Attribute) else ast.unparse(name)
    arguments = parser.args if isinstance(parser, ast.Call) else []
    given = {
        keyword.arg: eval(ast.unparse(keyword.value), vars(module))  # noqa: S307 - our own source
        for keyword in (parser.keywords if isinstance(parser, ast.Call) else [])
        if keyword.arg in {"low", "high"}
    }
    within = ""
    if given:
        within = f"from {given['low']}" if "high" not in given else f"{given['low']} to {given['high']}"
    for argument in arguments:
        if isinstance(argument, ast.Starred):
            continue
        names = eval(ast.unparse(argument), vars(module))  # noqa: S307
        if isinstance(names, type) and issubclass(names, Enum):
            docstrings = values_of(names)
            words = ", ".join(f"`{member.value}`" for member in names)
            said = "".join(f" `{one.value}`: {docstrings[one.name]}" for one in names if docstrings[one.name])
            return f"{words}, or a number {within}" if within else words, said
    words = KINDS.get(kind) or text_of(inspect.getdoc(getattr(parsers, kind)) or "").partition(".")[0]
    return (f"{words} {within}".strip() if within else words), ""


KINDS: Final = {
    "integer": "number", "optional_integer": "number, or nothing", "boolean": "true, false", "name": "text",
    "ip_address": "IP address", "hours": "hours, `;` between them",
    "delay_levels": "times, blanks between them",
    "networks": "networks, `,` between them", "directory": "path", "single_directory": "path",
    "optional_directory": "path", "optional_text": "text", "optional_archive_url": "URL",
    "optional_duration": "time as 90d", "optional_address": "HOST:PORT",
    "addresses": "HOST:PORT, `;` between them",
}  # fmt: skip
"""What the parsers of `trioha.config.values` accept; of others their docstrings say it."""


def default_text(default: Any, unit: str) -> str:
    """A default, or where it comes from."""
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        return "*as said*"
    text = value_text(default)
    if unit == "bytes" and isinstance(default, int) and default >= 65536:
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if default % size == 0:
                return f"`{text}` ({default // size} {name})"
    return f"`{text}`" if text else "none"


def since(key: str) -> str:
    """Since which version a key is RocketMQ's."""
    if key.startswith("trioha."):
        return "trioha"
    if key in rocketmq_keys.SINCE_5_5:
        return "5.5"
    if key in rocketmq_keys.SINCE_5_4:
        return "5.4"
    return "4.9" if key in rocketmq_keys.KEYS_OF_4_9 or key.startswith("tls.") else "5.x"


def settings_page() -> str:
    """Every key of a broker.conf and of a namesrv.conf."""
    keys = {attribute: setting.key for attribute, setting in broker.SETTINGS.items()}
    parts = [
        "# Settings",
        MADE_BY,
        SETTINGS_TEXT,
    ]
    shown = []
    for room in ROOMS:
        module = import_module(room.__module__)
        found = keys_of(module, room.__name__, factory="setting", kind=broker.BrokerConfig, keys=keys)
        shown += [one.key for one in found]
        title = (inspect.getdoc(room) or "").split("\n")[0].rstrip(".")
        if room is broker.BrokerConfig:
            title = "Who a node is, and what it prints"
        parts += [f"## {title}", table(TITLES, [one.cells for one in found])]
    assert sorted(shown) == sorted(keys.values()), set(keys.values()) ^ set(shown)
    aliases = [
        (f"`{alias}`", f"`{setting.key}`")
        for setting in broker.SETTINGS.values()
        for alias in setting.aliases
    ]
    if aliases:
        parts += ["## Other names", table(("also", "is"), aliases)]
    unused = len(rocketmq_keys.ROCKETMQ_KEYS - set(keys.values()))
    parts += [
        "## Keys without an effect",
        UNUSED_TEXT.format(unused),
        table(
            ("key", "what has its effect"),
            [(f"`{key}`", instead or "nothing") for key, instead in rocketmq_keys.RETIRED_KEYS.items()],
        ),
        "And these, which trioha once had:",
        table(
            ("key", "what is so now"),
            [(f"`{key}`", instead) for key, instead in rocketmq_keys.REMOVED_KEYS.items()],
        ),
        "## Name server",
        NAME_SERVER_TEXT,
    ]
    of_names = keys_of(
        name_server,
        "NameServerSettings",
        factory="_setting",
        kind=name_server.NameServerSettings,
        keys={field.name: field.metadata["key"] for field in attrs.fields(name_server.NameServerSettings)},
    )
    rows = [(*one.cells[:4], one.meaning) for one in of_names]
    parts.append(table((*TITLES[:4], TITLES[-1]), rows))
    return "\n\n".join(parts) + "\n"


# -- commands ----------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its arguments and options."""
    app = command_line(None)
    parts = [
        "# Commands",
        MADE_BY,
        COMMANDS_TEXT,
    ]
    for title, commands in GROUPS.items():
        parts.append(f"## {title}")
        for command in commands:
            for called, function in functions_of(command).items():
                parts += command_parts(app, called, function)
    return "\n\n".join(parts) + "\n"


def command_parts(app: Any, called: str, function: Callable[..., object]) -> Iterator[str]:
    """The heading, the text and the options of a command."""
    for word in called.split():
        app = app[word]
    # The parser may have unwrapped it already, in the same process.
    docstring = unwrapped(function.__doc__ or "")
    arguments, options = [], []
    for one in app.assemble_argument_collection(default_parameter=OPTIONS, parse_docstring=True):
        parameter = one.parameter
        if parameter.show is False or not one.show:
            continue
        default = one.field_info.default
        is_positional = not any(name.startswith("-") for name in one.names)
        shown = parameter.show_default(default) if callable(parameter.show_default) else None
        if default is inspect.Parameter.empty or shown is None:
            shown = "needed" if one.required else ""
        name = ", ".join(f"`{name}`" for name in one.names) or f"`{one.field_info.name.upper()}`"
        (arguments if is_positional else options).append((name, shown, text_of(parameter.help or "")))
    yield f"### trioha {called}"
    yield docstring.partition("\nParameters\n---")[0].strip()
    if rows := arguments + options:
        yield table(("argument, option", "default", "meaning"), rows)


# -- events ------------------------------------------------------------------------------------------------

PARTS: Final = ("offset", "aux", "size", "flags")


def events_page() -> str:
    """Every kind of event of a recorded session, and every code in `flags`."""
    docstrings = values_of(events.Kind)
    rows = []
    for kind in events.Kind:
        said = {}
        for part in docstrings[kind.name].rstrip(".").split("; "):
            names, _, meaning = part.partition(": ")
            for name in names.split(", "):
                assert name in PARTS, f"{kind.name}: {part}"
                said[name] = meaning
        rows.append((str(int(kind)), kind.name, *(said.get(name, "") for name in PARTS)))
    parts = [
        "# Events of a recorded session",
        MADE_BY,
        EVENTS_TEXT,
        table(("code", "kind", *(f"`{name}`" for name in PARTS)), rows),
    ]
    for codes in EVENT_CODES:
        of_codes = values_of(codes)
        title = text_of(inspect.getdoc(codes) or "").rstrip(".")
        parts += [
            f"## {codes.__name__}",
            f"{title}.",
            table(
                ("code", "name", "meaning"), [(str(int(one)), one.name, of_codes[one.name]) for one in codes]
            ),
        ]
    return "\n\n".join(parts) + "\n"


PAGES: Final = {"settings.md": settings_page, "commands.md": commands_page, "events.md": events_page}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
