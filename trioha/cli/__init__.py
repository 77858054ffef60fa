"""The `trioha` command.

Commands are named here and imported when they are called, so that `trioha node` starts without Textual,
Spark, or anything else that only another command needs; with its usual arguments also without the parser.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from types import TracebackType
from typing import Final

from trioha.errors import TriohaError, leaves_of

EXIT_REFUSED: Final = 2
"""Exit code for bad input: arguments, settings, files or peers that cannot be used."""
EXIT_INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell reports it."""

GROUPS: Final = {
    "Run": {
        "node": "Run a master or a slave.",
        "namesrv": "Run a name server.",
        "demo": "Show it all: replicate, break, recover, verify, replay.",
        "configs": "List and copy example configurations, dashboard and systemd unit.",
    },
    "Use": {
        "produce": "Send the lines of stdin as messages.",
        "consume": "Print the messages of a topic.",
        "copy": "Send the messages of a topic to another cluster.",
        "load": "Send messages to a broker and measure it.",
    },
    "Administer": {
        "topic": "List, create and delete topics, and show their queues.",
        "group": "List consumer groups, show how far they are, and reset them.",
        "message": "Show single messages: by place, by id, by key.",
    },
    "Look": {
        "status": "Show in a line each how brokers and replicas are.",
        "monitor": "Watch replication live in the terminal.",
        "doctor": "Check HA pairs, and explain what is wrong and what to do.",
        "inspect": "Print the records of a store.",
        "offsets": "Print consumer groups' offsets, now or in the past.",
        "verify": "Check a store or an archive, or compare two.",
    },
    "Users": {
        "auth": "Move users and access control lists between stores and brokers.",
    },
    "Archive": {
        "archive": "Archive a store to an object storage.",
        "restore": "Make a store from an archive, as of a time or an offset.",
    },
    "Analyse": {
        "replay": "Replay recorded sessions on Spark.",
        "what-if": "Predict puts with other settings from a recorded session.",
        "session": "Pack recorded sessions for keeping, and unpack them.",
    },
}
"""Commands and their summaries in the help, by group."""
COMMANDS: Final = {name: text for commands in GROUPS.values() for name, text in commands.items()}
"""Each is a function, or an App of several ones, in a module, both of its name with _ for -."""

FLAGS: Final = ("--help", "-h", "--version", "--install-completion")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (those of the process by default) and return the exit code.

    Each problem of the input is one line on stderr, with exit code 2; only a bug of ours shows a traceback.
    """
    sys.excepthook = print_traceback
    _replace_what_is_not_encodable()
    tokens = sys.argv[1:] if arguments is None else list(arguments)
    if tokens and tokens[0] not in COMMANDS and tokens[0] not in FLAGS:
        # The parser would import every command to suggest one.
        from difflib import get_close_matches  # noqa: PLC0415

        similar = get_close_matches(tokens[0], COMMANDS, n=1)
        return _refuse(
            f"there is no command {tokens[0]!r}",
            hint=f"did you mean {similar[0]}?" if similar else "see trioha --help",
        )
    try:
        code = _call(tokens)
        sys.stdout.flush()
    except TriohaError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError as error:
        return _end([error])
    except BaseExceptionGroup as group:
        # Raised in a nursery.
        expected, bugs = group.split((TriohaError, KeyboardInterrupt, BrokenPipeError))
        if bugs is not None or expected is None:
            raise
        return _end(leaves_of(expected))
    assert isinstance(code, int), f"a command ended in {code!r}"
    return code


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what ends the process, as a terminal may show it: its text may be a peer's."""
    from traceback import format_exception  # noqa: PLC0415 - a bug only

    from trioha.outside_text import escaped_lines  # noqa: PLC0415

    print(escaped_lines("".join(format_exception(kind, error, trace))), end="", file=sys.stderr)


def _replace_what_is_not_encodable() -> None:
    """Print `?` for a character that the encoding of stdout or stderr does not have, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _call(tokens: list[str]) -> object:
    """Run the command of `tokens`."""
    if tokens[:1] == ["node"]:
        from trioha.cli.node_start import start_node, usual_arguments  # noqa: PLC0415

        if (arguments := usual_arguments(tokens[1:])) is not None:
            return start_node(arguments)
    from cyclopts import CycloptsError  # noqa: PLC0415

    from trioha.cli.app import command_line  # noqa: PLC0415

    try:
        return command_line(tokens[0] if tokens else None)(tokens)
    except CycloptsError as error:
        return _refuse(" ".join(str(error).split()), hint=_help_hint(tokens))


def _end(errors: list[BaseException]) -> int:
    if any(isinstance(error, BrokenPipeError) for error in errors):
        # The reader of our output has ended (`trioha inspect | head`): discard what is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    codes = [_refuse(str(error)) for error in errors if isinstance(error, TriohaError)]
    return codes[0] if codes else EXIT_INTERRUPTED


def _refuse(text: str, *, hint: str | None = None) -> int:
    from trioha.outside_text import escaped  # noqa: PLC0415 - a command that is right does not need it

    for line in text.split("\n"):
        print(escaped(f"trioha: {line}" + (f"; {hint}" if hint else "")), file=sys.stderr)
    return EXIT_REFUSED


def _help_hint(tokens: Sequence[str]) -> str:
    return f"see trioha {tokens[0]} --help" if tokens else "see trioha --help"
