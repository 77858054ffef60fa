"""`python -m tests.traced FILE ARGUMENTS` is `trioha ARGUMENTS`, which notes in FILE what files it enters.

A line of FILE for each change of file: the time on the monotonic clock in ns, which is the same for all
processes, and the path within the checkout. Compiled modules are seen where Python calls them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import CodeType, FrameType

from trioha.compiled import MODULES, source_of

ROOT = Path(__file__).parents[1]
PACKAGE = f"{ROOT / 'trioha'}/"
_SOURCES = {f"_{source.stem}": source.name for source in map(source_of, MODULES)}
"""Of compiled modules."""


def program(file: Path) -> list[str]:
    """The command to start instead of `trioha`."""
    return [sys.executable, "-m", "tests.traced", str(file)]


def entered(file: Path, began_ns: int, ended_ns: int) -> set[str]:
    """The files that were entered between two times."""
    times = (line.split(" ", 1) for line in file.read_text().splitlines())
    return {name for time_ns, name in times if began_ns <= int(time_ns) <= ended_ns}


def _install(file: Path) -> None:
    """Note each file that this thread enters."""
    written = file.open("w", buffering=1)
    names: dict[CodeType, str] = {}
    last = ""

    def name_of(code: CodeType) -> str:
        name = names.get(code)
        if name is None:
            path = code.co_filename
            name = names[code] = path.removeprefix(f"{ROOT}/") if path.startswith(PACKAGE) else ""
        return name

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal last
        if event == "call":
            name = name_of(frame.f_code)
        elif event == "c_call":
            *package, module = (getattr(arg, "__module__", None) or "").split(".")
            name = "/".join([*package, _SOURCES[module]]) if module in _SOURCES else ""
        else:
            return
        if name and name != last:
            last = name
            written.write(f"{time.monotonic_ns()} {name}\n")

    sys.setprofile(note)


if __name__ == "__main__":
    from trioha.cli import main

    _install(Path(sys.argv.pop(1)))
    sys.exit(main())
