"""`trioha session`: pack recorded sessions for keeping, and unpack them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.progress import MofNCompleteColumn

from trioha.cli.console import err, out, print_json
from trioha.cli.progress import bars
from trioha.cli.spark import spark_module
from trioha.errors import StoreError, TriohaError
from trioha.palette import BAD
from trioha.recording.reader import find_sessions, open_session
from trioha.unit_texts import counted


def session(
    action: Literal["pack", "unpack"],
    sessions: Annotated[list[Path], Parameter(negative=())],
    /,
    *,
    keep: bool = False,
    all: bool = False,  # noqa: A002 (the option's name)
    json: bool = False,
) -> int:
    """Pack recorded sessions for keeping, or unpack them byte for byte.

    Packed ones are Parquet, and several times smaller. `pack` packs the segments that are complete and
    deletes each after its packed file has been read back and is the same. `trioha replay`, `trioha what-
    if`, `monitor --replay` and Spark read packed sessions as they are, where PyArrow is installed. Exit
    code 1 if a segment could not be packed or unpacked.

    Parameters
    ----------
    action
        pack or unpack.
    sessions
        Session folders, or folders of them (what trioha.recordDir names).
    keep
        Keep the segments beside the packed files.
    all
        Also pack the last segment of sessions that were not closed because their recorder was killed. Do not
        use it on a session that is still recorded.
    json
        Print one JSON object.
    """
    if action == "unpack" and (keep or all):
        raise TriohaError("--keep and --all are for pack: unpack makes every segment again")
    packing = spark_module("trioha_analysis.packing", command="session", needs="Parquet")
    jobs = []
    for path in find_sessions(sessions):
        opened = open_session(path)
        if action == "pack":
            jobs += [(opened, segment) for segment in packing.sealed_segments(opened, every=all)]
        else:
            jobs += [(opened, segment) for segment in packing.packed_segments(opened)]
    done: list[Any] = []
    problems: list[str] = []
    with bars(MofNCompleteColumn()) as progress:
        for opened, what in progress.track(jobs, description=f"{action}ing"):
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
        text = f"{action}ed {counted(len(done), 'segment')} with {counted(records, 'record')}: "
        text += f"{before:,} bytes became {after:,}"
        if action == "pack" and after:
            text += f", {before / after:.1f} times smaller"
        out().print(text if done else f"nothing to {action}", soft_wrap=True)
        for problem in problems:
            err().print(problem, style=BAD.terminal, soft_wrap=True)
    return 1 if problems else 0
