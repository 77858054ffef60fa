"""`trioha session`: pack recorded sessions for keeping, and unpack them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trioha.cli.console import err, out, print_json
from trioha.cli.extras import how_to_install
from trioha.errors import StoreError, TriohaError
from trioha.recording.reader import find_sessions, open_session


def session(
    action: Literal["pack", "unpack"],
    sessions: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    keep: bool = False,
    all: bool = False,  # noqa: A002 (the option's name)
    json: bool = False,
) -> int:
    """Pack recorded sessions into Parquet, several times smaller, or unpack them byte for byte.

    `pack` takes segments that nobody writes any more and deletes each when its packed file has been read back
    and is the same. `trioha replay`, `trioha what-if`, `monitor --replay` and Spark read packed sessions as
    they are, where PyArrow is installed. Exit code 1 if something had to be left as it was.

    Parameters
    ----------
    action
        pack or unpack.
    sessions
        Session folders, or folders of them (what trioha.recordDir names).
    keep
        Keep the segments beside what is packed.
    all
        Pack the last segment, too, of sessions that never were closed: their recorder was killed. Do not use
        it on a session that is still recorded.
    json
        Print one JSON object.
    """
    if action == "unpack" and (keep or all):
        raise TriohaError("--keep and --all are for pack: unpack makes every segment again")
    packing = _packing()
    jobs = []
    for path in find_sessions(sessions):
        opened = open_session(path)
        if action == "pack":
            jobs += [(opened, segment) for segment in packing.sealed_segments(opened, every=all)]
        else:
            jobs += [(opened, segment) for segment in packing.packed_segments(opened)]
    done: list[Any] = []
    problems: list[str] = []
    with Progress(
        TextColumn(f"{action}ing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=err(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        for opened, what in progress.track(jobs):
            try:
                if action == "pack":
                    done.append(packing.pack_segment(opened, what, keep=keep))
                else:
                    done.append(packing.unpack_segment(opened, what))
            except StoreError as error:
                problems.append(str(error))
    before, after = sum(one.source_bytes for one in done), sum(one.target_bytes for one in done)
    if json:
        print_json(
            {
                "ok": not problems,
                "segments": [
                    {
                        "from": str(one.source),
                        "to": str(one.target),
                        "records": one.records,
                        "bytesBefore": one.source_bytes,
                        "bytesAfter": one.target_bytes,
                    }
                    for one in done
                ],
                "bytesBefore": before,
                "bytesAfter": after,
                "problems": problems,
            }
        )
    else:
        records = sum(one.records for one in done)
        text = f"{action}ed {len(done)} segments with {records:,} records: {before:,} bytes became {after:,}"
        if action == "pack" and after:
            text += f", {before / after:.1f} times smaller"
        out().print(text if done else f"nothing to {action}", soft_wrap=True)
        for problem in problems:
            err().print(problem, style="red", soft_wrap=True, markup=False)
    return 1 if problems else 0


def _packing() -> ModuleType:
    """The module that packs, which is there only with the extra. Raises TriohaError without it."""
    try:
        return importlib.import_module("trioha_analysis.packing")
    except ModuleNotFoundError as error:
        raise TriohaError(
            f"trioha session needs Parquet, and {error.name} is not installed; {how_to_install('spark')}"
        ) from error
