"""`trioha verify`: check every record of a store, or compare two stores."""

from __future__ import annotations

import sys
from pathlib import Path

from attrs import evolve
from rich.progress import Progress

from trioha.cli.console import err, out, print_json
from trioha.store.read_only_commit_log import LogCheck, ReadOnlyCommitLog


def verify(store: Path, *, against: Path | None = None, prefix: bool = False, json: bool = False) -> int:
    """Check every record of a commit log: length, magic, position and the CRC of its body.

    Exit code 1 if a record is bad or the stores differ; the first such offset is named.

    Parameters
    ----------
    store
        A storePathRootDir, or its commitlog folder.
    against
        Another store: both are checked and compared byte by byte where both have a log.
    prefix
        Accept that one of the two logs ends earlier, as that of a replica with lag does.
    json
        Print one JSON object.
    """
    with Progress(console=err(), transient=True, disable=not sys.stderr.isatty()) as progress:
        log = ReadOnlyCommitLog.open(store)
        other = None if against is None else ReadOnlyCommitLog.open(against)
        checks = [(store, _check(log, progress, f"checking {store}"))]
        if other is not None and against is not None:
            checks.append((against, _check(other, progress, f"checking {against}")))
        problems = [
            f"{path}: bad record at offset {check.end_offset}: {check.fault}"
            for path, check in checks
            if check.fault
        ]
        compared = None
        difference = None
        if other is not None:
            (_, mine), (_, theirs) = checks
            compared = (max(mine.min_offset, theirs.min_offset), min(mine.end_offset, theirs.end_offset))
            difference = log.first_difference(other, *compared)
            if difference is not None:
                problems.append(f"{store} and {against} differ at offset {difference}")
            elif mine.end_offset != theirs.end_offset and not prefix:
                difference = compared[1]
                longer, shorter = (
                    (store, against) if mine.end_offset > theirs.end_offset else (against, store)
                )
                problems.append(
                    f"{shorter} ends at offset {difference}, "
                    f"{longer} at {max(mine.end_offset, theirs.end_offset)} (--prefix accepts that)"
                )
    if json:
        print_json(
            {
                "ok": not problems,
                "stores": [
                    {
                        "store": str(path),
                        "minOffset": check.min_offset,
                        "maxOffset": check.end_offset,
                        "records": check.records,
                        "fault": check.fault or None,
                    }
                    for path, check in checks
                ],
                "compared": compared,
                "firstDifference": difference,
                "problems": problems,
            }
        )
    else:
        for path, check in checks:
            out().print(
                f"{path}: {check.records} records, offsets {check.min_offset} to {check.end_offset}",
                soft_wrap=True,
            )
        if compared is not None and difference is None:
            out().print(f"equal from offset {compared[0]} to {compared[1]}")
        for problem in problems:
            err().print(problem, style="red", soft_wrap=True, markup=False)
    return 1 if problems else 0


def _check(log: ReadOnlyCommitLog, progress: Progress, title: str) -> LogCheck:
    """Check file after file up to the first bad record or the end of the log."""
    starts = log.file_starts()
    task = progress.add_task(title, total=len(starts))
    whole = LogCheck(min_offset=log.min_offset, end_offset=log.min_offset, records=0, fault="")
    for start_offset in starts:
        check = log.check_file(start_offset)
        whole = evolve(check, min_offset=whole.min_offset, records=whole.records + check.records)
        progress.advance(task)
        if check.fault or check.end_offset < start_offset + log.file_bytes:
            break
    progress.update(task, completed=len(starts))
    return whole
