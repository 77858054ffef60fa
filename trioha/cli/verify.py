"""`trioha verify`: check every record of a store or an archive, or compare a store with one of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from attrs import asdict, evolve
from rich.progress import Progress, TaskProgressColumn

from trioha.archive.comparison import Comparison, Difference, compare_with_archive
from trioha.archive.reader import ArchiveReader
from trioha.archive.verification import Verification, verify_archive
from trioha.cli.console import err, out, print_json
from trioha.cli.progress import bars, shown_by
from trioha.errors import ConfigError
from trioha.palette import BAD
from trioha.store.read_only_commit_log import LogCheck, ReadOnlyCommitLog

SHOWN: Final = 20
"""Problems and differences that are printed; `--json` has more."""


def verify(
    store: str,
    *,
    against: str | None = None,
    prefix: bool = False,
    quick: bool = False,
    generation: str | None = None,
    json: bool = False,
) -> int:
    """Check every record of a store or an archive, or compare two.

    Of a store's records length, magic, position and the CRC of the body are checked. RocketMQ has no checksum
    over the other fields: a comparison with another store or an archive finds what is wrong there. Of an
    archive everything is checked: all objects with their CRCs, all records, statistics, metadata. Exit code 1
    if something is bad or differs; records are named with their offsets, objects with their keys.

    Parameters
    ----------
    store
        A storePathRootDir, or its commitlog folder; or the URL of an archive: s3://bucket/folder, gs://,
        az:// or file:///folder.
    against
        Another store, or the URL of an archive: compared byte by byte where both have a log.
    prefix
        Accept that one of the two logs ends earlier, as that of a replica with lag does. That an archive ends
        before its store is always accepted.
    quick
        Of an archive check only that all objects are there with their sizes.
    generation
        Of the archive that a store is compared with: a history of the log, by the beginning of its id; the
        newest one by default.
    json
        Print one JSON object.
    """
    with bars(TaskProgressColumn()) as progress:
        if _is_url(store):
            if against is not None:
                raise ConfigError(
                    "compares a store with an archive", key="--against", hint="name the store first"
                )
            found = verify_archive(ArchiveReader.open(store), quick=quick, on_progress=shown_by(progress))
            return _report_archive(store, found, quick=quick, as_json=json)
        if quick:
            raise ConfigError("is for archives", key="--quick")
        if against is not None and _is_url(against):
            comparison = compare_with_archive(
                ReadOnlyCommitLog.open(Path(store)),
                ArchiveReader.open(against),
                generation=generation,
                on_progress=shown_by(progress),
            )
            return _report_comparison(store, against, comparison, prefix=prefix, as_json=json)
        return _verify_stores(
            Path(store), None if against is None else Path(against), prefix, progress, as_json=json
        )


def _is_url(text: str) -> bool:
    return "://" in text


def _print_problems(problems: list[str], count: int) -> None:
    for problem in problems[:SHOWN]:
        err().print(problem, style=BAD.terminal, soft_wrap=True)
    if count > min(len(problems), SHOWN):
        err().print(f"{count - min(len(problems), SHOWN)} more", style=BAD.terminal, soft_wrap=True)


# -- archives -----------------------------------------------------------------------------------------------


def _report_archive(url: str, found: Verification, *, quick: bool, as_json: bool) -> int:
    if as_json:
        print_json(
            {
                "ok": not found.problem_count,
                "archive": url,
                "quick": quick,
                "head": found.head,
                "generations": found.generations,
                "objects": found.objects,
                "records": found.records,
                "logBytes": found.log_bytes,
                "objectBytes": found.object_bytes,
                "metadata": found.metadata,
                "segments": found.segments,
                "unreferencedObjects": found.unreferenced,
                "unreferencedBytes": found.unreferenced_bytes,
                "problems": found.problems,
                "problemCount": found.problem_count,
            }
        )
    else:
        how = "are listed with their sizes" if quick else "checked"
        out().print(
            f"{url}: head {found.head}, {found.generations} generations; {found.objects} log objects with"
            f" {found.records:,} records and {found.log_bytes:,} bytes of the log, {found.metadata} metadata"
            f" objects, {found.segments} segments of recordings {how}",
            soft_wrap=True,
        )
        if found.unreferenced:
            out().print(
                f"{found.unreferenced} objects with {found.unreferenced_bytes:,} bytes are not part of the"
                " archive: of a writer at work, merged ones, or of a writer that died; writers delete them",
                soft_wrap=True,
            )
        _print_problems([f"{url.rstrip('/')}/{one}" for one in found.problems], found.problem_count)
    return 1 if found.problem_count else 0


# -- a store and an archive ---------------------------------------------------------------------------------


def _report_comparison(store: str, url: str, found: Comparison, *, prefix: bool, as_json: bool) -> int:
    problems = [_difference_text(store, one) for one in found.differences]
    more = found.difference_count - len(found.differences)
    problems += [f"{url.rstrip('/')}/{one}: not compared" for one in found.damaged]
    if found.compared is None:
        problems.append(
            f"nothing to compare: {store} has offsets {found.store_span[0]} to {found.store_span[1]},"
            f" generation {found.generation} {found.archive_span[0]} to {found.archive_span[1]}"
        )
    elif found.ends_early and not prefix:
        problems.append(
            f"{store} ends at offset {found.store_span[1]}, the archive at {found.archive_span[1]}"
            " (--prefix accepts that)"
        )
    if found.only_store_fault:
        problems.append(
            f"{store}: bad record at offset {found.store_span[1]}, after the archive's end:"
            f" {found.only_store_fault}"
        )
    if as_json:
        print_json(
            {
                "ok": not problems,
                "store": store,
                "archive": url,
                "generation": found.generation,
                "compared": found.compared,
                "records": found.records,
                "differences": [_as_json(one) for one in found.differences],
                "differenceCount": found.difference_count,
                "onlyStore": found.only_store,
                "onlyArchive": found.only_archive,
                "problems": problems,
            }
        )
        return 1 if problems else 0
    if found.compared is not None and not found.difference_count:
        out().print(
            f"equal from offset {found.compared[0]} to {found.compared[1]}: {found.records:,} records,"
            f" generation {found.generation}",
            soft_wrap=True,
        )
    for first, end in found.only_store:
        checked = f", {found.only_store_records:,} records checked" if first >= found.archive_span[1] else ""
        out().print(f"only in the store: offsets {first} to {end}{checked}", soft_wrap=True)
    for first, end in found.only_archive:
        out().print(f"only in the archive: offsets {first} to {end}", soft_wrap=True)
    _print_problems(problems, len(problems) + more)
    return 1 if problems else 0


def _difference_text(store: str, one: Difference) -> str:
    what = (
        "the blank"
        if one.topic is None
        else f"the record of topic {one.topic}, queue {one.queue_id}, queue offset {one.queue_offset},"
    )
    where = "" if one.topic is None else f" in {one.field}"
    return (
        f"{store} differs at offset {one.offset}: {what} at offset {one.record_offset} has"
        f" {one.bytes} other bytes{where}"
    )


def _as_json(one: Difference) -> dict[str, Any]:
    names = {"record_offset": "recordOffset", "queue_id": "queueId", "queue_offset": "queueOffset"}
    return {names.get(name, name): value for name, value in asdict(one).items()}


# -- stores -------------------------------------------------------------------------------------------------


def _verify_stores(
    store: Path, against: Path | None, prefix: bool, progress: Progress, *, as_json: bool
) -> int:
    """Check one store, or check and compare two."""
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
            longer, shorter = (store, against) if mine.end_offset > theirs.end_offset else (against, store)
            problems.append(
                f"{shorter} ends at offset {difference}, "
                f"{longer} at {max(mine.end_offset, theirs.end_offset)} (--prefix accepts that)"
            )
    if as_json:
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
            err().print(problem, style=BAD.terminal, soft_wrap=True)
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
