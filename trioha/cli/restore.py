"""`trioha restore`: make a store from an archive, or list what the archive has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import DownloadColumn
from rich.table import Table

from trioha.archive.contents import Contents, contents_of
from trioha.archive.errors import ArchiveError, NoArchiveError
from trioha.archive.reader import ArchiveReader
from trioha.archive.restore import Restore, Restored, has_store
from trioha.archive.restore_plan import Target
from trioha.cli.console import out, print_json
from trioha.cli.progress import bars, shown_by
from trioha.cli.times import time_option_ms
from trioha.errors import ConfigError, TriohaError
from trioha.metadata.clamped_offsets import clamp_offsets
from trioha.node.logs import configure_logs
from trioha.numbers import NATURAL64, parse_int
from trioha.times import time_text
from trioha.unit_texts import counted


def restore(
    url: str,
    *,
    into: Path | None = None,
    to_offset: str | None = None,
    to_time: str | None = None,
    latest: bool = False,
    generation: str | None = None,
    build: bool = False,
    if_missing: bool = False,
    if_archived: bool = False,
    list: bool = False,  # noqa: A002 (the option's name)
    json: bool = False,
) -> int:
    """Make a store from an archive, for RocketMQ or trioha.

    It has the log, the config files and the checkpoint. Every record is checked with its CRC. A restore
    that was interrupted, or refused by a full disk, goes on when the same command runs again: log files
    that are whole stay.

    Parameters
    ----------
    url
        The archive: s3://bucket/folder, gs://, az:// or file:///folder.
    into
        A new or empty folder: the storePathRootDir to be.
    to_offset
        Restore the records that end at or before this physical offset.
    to_time
        Restore the records before the first one that was stored after this time: 2026-11-22T14:30:00 (local,
        or with Z or an offset as +08:00), or milliseconds since 1970.
    latest
        Restore everything; this is the default.
    generation
        A history of the log, by the beginning of its id; the newest one by default.
    build
        Build consume queues and index at once, for a node or broker with the default settings of queues and
        index. Otherwise the first start builds them.
    if_missing
        Do nothing where `--into` has a store already: for a step before each start of a broker.
    if_archived
        Do nothing where there is no archive yet.
    list
        List the archive's generations, metadata and recordings, and restore nothing.
    json
        Print one JSON object.
    """
    configure_logs(as_json=json)
    if list:
        return _list(contents_of(ArchiveReader.open(url)), as_json=json)
    if into is None:
        raise ConfigError("is missing", key="--into", hint="name a new folder, or use --list")
    if sum((to_offset is not None, to_time is not None, latest)) > 1:
        raise ConfigError("give only one of --to-offset, --to-time and --latest", key="--to-offset")
    target = Target(
        to_offset=None if to_offset is None else _offset(to_offset),
        to_ms=None if to_time is None else time_option_ms(to_time, key="--to-time"),
    )
    if if_missing and has_store(into):
        return _left(f"{into} has a store", as_json=json)
    try:
        reader = ArchiveReader.open(url)
    except NoArchiveError as error:
        if not if_archived:
            raise
        return _left(f"{error.url}: {error.reason}", as_json=json)
    with bars(DownloadColumn()) as progress:
        try:
            restored = Restore(reader, into, clamp=clamp_offsets).run(
                target, generation=generation, build=build, on_progress=shown_by(progress)
            )
        except ArchiveError as error:
            if not error.is_transient:
                raise
            raise TriohaError(f"{error}; run the same command again: it keeps what is whole") from error
    if json:
        print_json(_as_json(restored, into))
    else:
        _print(restored, into)
    return 0


def _left(reason: str, *, as_json: bool) -> int:
    """Say that nothing was to be done; the exit code."""
    if as_json:
        print_json({"ok": True, "restored": False, "reason": reason})
    else:
        out().print(f"{reason}: nothing was restored", markup=False, soft_wrap=True)
    return 0


def _offset(text: str) -> int:
    try:
        return parse_int(int(text), NATURAL64)
    except ValueError:
        raise ConfigError(
            f"{text[:80]!r} is not an offset", key="--to-offset", hint="write a number of bytes"
        ) from None


def _as_json(restored: Restored, into: Path) -> dict[str, Any]:
    plan, metadata = restored.plan, restored.metadata
    return {
        "ok": True,
        "store": str(into),
        "archive": plan.url,
        "clusterName": plan.cluster_name,
        "brokerName": plan.broker_name,
        "generation": plan.generation,
        "firstOffset": plan.first_offset,
        "endOffset": plan.end_offset,
        "lastStoreTimestamp": restored.last_store_ms,
        "mappedFileSizeCommitLog": plan.file_bytes,
        "files": len(plan.files),
        "filesKept": restored.files_kept,
        "recordsWritten": restored.records,
        "metadata": None
        if metadata is None
        else {
            "takenTimestamp": metadata.taken_ms,
            "offset": metadata.offset,
            "isLater": restored.is_metadata_later,
            "files": restored.config_files,
        },
        "offsetsClamped": restored.clamped,
        "offsetsUnreadable": dict(restored.unreadable),
        "built": restored.is_built,
    }


def _print(restored: Restored, into: Path) -> None:
    plan, metadata = restored.plan, restored.metadata

    def say(text: str) -> None:
        out().print(text, soft_wrap=True)

    say(
        f"{into}: restored offsets {plan.first_offset} to {plan.end_offset} of {plan.broker_name},"
        f" generation {plan.generation}; its last record was stored at {time_text(restored.last_store_ms)}"
    )
    kept = f"; {restored.files_kept} files were whole already" if restored.files_kept else ""
    say(f"{restored.records:,} records checked and written, in {len(plan.files)} log files{kept}")
    if metadata is None:
        say("the archive has no config files: create topics and groups before the first start")
    else:
        say(f"config files as of {time_text(metadata.taken_ms)}: {', '.join(restored.config_files)}")
    if restored.is_metadata_later:
        say("the archive has none from before the end of the restored log: these are the oldest that it has")
    if restored.clamped:
        say(
            f"{restored.clamped} offsets of groups or delay levels were beyond the restored queues: they are"
            " at the queues' ends now"
        )
    for name, reason in restored.unreadable.items():
        say(f"offsets in {name} were not compared with the queues, it cannot be read: {reason}")
    say(
        f"start it with storePathRootDir={into.absolute()} and mappedFileSizeCommitLog={plan.file_bytes}"
        + ("" if restored.is_built else "; the first start builds queues and index")
    )


# -- list ---------------------------------------------------------------------------------------------------


def _list(contents: Contents, *, as_json: bool) -> int:
    if as_json:
        print_json(contents.to_json())
        return 0
    head = contents.head
    out().print(
        f"archive of {head.cluster_name}/{head.broker_name}, written by"
        f" {head.writer.id} (epoch {head.writer.epoch}), last at {time_text(head.writer.renewed_ms)}",
        soft_wrap=True,
    )
    table = Table(title="Generations", title_justify="left")
    for name in ("generation", "began", "reason"):
        table.add_column(name, overflow="fold")
    for name in ("first offset", "end offset", "records"):
        table.add_column(name, justify="right")
    table.add_column("stored from")
    table.add_column("to")
    table.add_column("log MiB", justify="right")
    table.add_column("stored MiB", justify="right")
    table.add_column("metadata")
    for one in contents.generations:
        newest = f", newest {time_text(one.metadata[0].taken_ms)}" if one.metadata else ""
        table.add_row(
            one.generation.id,
            time_text(one.generation.began_ms),
            one.generation.reason,
            str(one.generation.first_offset),
            str(one.generation.end_offset),
            f"{one.records:,}",
            time_text(one.min_store_ms) if one.records else "",
            time_text(one.max_store_ms) if one.records else "",
            f"{one.log_bytes / (1 << 20):,.1f}",
            f"{one.object_bytes / (1 << 20):,.1f}",
            f"{counted(len(one.metadata), 'moment')}{newest}",
        )
    out().print(table)
    if head.recordings:
        recorded = Table(title="Recordings", title_justify="left")
        recorded.add_column("session", overflow="fold")
        for name in ("segments", "records", "MiB"):
            recorded.add_column(name, justify="right")
        recorded.add_column("state")
        for session in head.recordings:
            recorded.add_row(
                session.session,
                str(len(session.segments)),
                f"{sum(segment.records for segment in session.segments):,}",
                f"{sum(segment.bytes for segment in session.segments) / (1 << 20):,.1f}",
                "closed" if session.closed else "still recorded",
            )
        out().print(recorded)
    return 0
