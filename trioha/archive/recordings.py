"""Recorded sessions in an archive: complete segments as Parquet, beside `session.json` and the facts.

A segment is packed by a child process, since PyArrow takes more memory than the archiver. The last segment of
a session is complete when the session has ended: its last fact says so, or its node has begun another one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import evolve, frozen

from trioha.archive.errors import ArchiveError
from trioha.archive.layout import RECORDINGS, RecordedSegment, RecordedSession, is_key
from trioha.archive.objects import ObjectFolder
from trioha.errors import StoreError
from trioha.extras import how_to_install
from trioha.numbers import NATURAL64, parse_int
from trioha.recording.layout import CLOSED_NOTE, EVENTS_FOLDER, FACTS_FILE, PACKED_SUFFIX, SESSION_FILE
from trioha.recording.reader import Session, open_session

PACKER: Final = "trioha_analysis.packed_copy"
"""The module that packs a segment, as a program."""
_PIECE_BYTES: Final = 4 << 20
_SEGMENT_DIGITS: Final = 20


@frozen
class Waiting:
    """A session of which something is not archived yet."""

    session: Session
    segments: tuple[Path, ...]
    """Complete segments to be archived, oldest first."""
    is_ended: bool
    archived: RecordedSession
    """What the archive has of it."""


def check_packer(url: str) -> None:
    """Raise ArchiveError if segments cannot be packed here."""
    if find_spec("pyarrow") is None or find_spec("trioha_analysis") is None:
        raise ArchiveError("recordings need PyArrow", url=url, hint=how_to_install("spark"))


def waiting_sessions(
    folder: Path,
    archived: Iterable[RecordedSession],
    *,
    from_ms: int | None = None,
    old: Container[Path] = (),
) -> Iterator[Waiting]:
    """Sessions in `folder` with something new, oldest first; those that cannot be read are left out.

    What ended before `from_ms` is not new: the archive may have had and dropped it. A segment that was last
    written before then is old, and so are those in `old`.
    """
    known = {one.session: one for one in archived}
    sessions = sorted(_sessions(folder), key=lambda session: session.wall_ns)
    newest = {_node_of(session): session.path for session in sessions}
    for session in sessions:
        before = known.get(session.path.name)
        if before is None:
            before = RecordedSession(session=session.path.name, segments=(), closed=False)
        if before.closed:
            continue
        is_ended = newest[_node_of(session)] != session.path or _is_closed(session.path)
        segments = _segments(session.path)
        complete = segments if is_ended else segments[:-1]
        seqs = {one.first_seq for one in before.segments}
        new = tuple(
            path
            for path in complete
            if int(path.stem) not in seqs and path not in old and not _was_written_before(path, from_ms)
        )
        is_known = session.path.name in known
        if not new and not is_known and from_ms is not None and began_before(session, from_ms):
            continue
        if new or is_ended:
            yield Waiting(session, new, is_ended, before)


def store_segments(
    folder: ObjectFolder, session: Session, paths: Sequence[Path]
) -> tuple[list[RecordedSegment], dict[Path, str]]:
    """Pack segments and store them; the reasons for those that cannot be packed. Raises ArchiveError."""
    stored: list[RecordedSegment] = []
    problems: dict[Path, str] = {}
    with TemporaryDirectory(prefix="trioha-archive-") as scratch:
        command = [sys.executable, "-m", PACKER, str(session.path), scratch]
        done = subprocess.run(  # noqa: S603 (our own module)
            [*command, *(str(int(path.stem)) for path in paths)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        reason = next(reversed(done.stderr.splitlines()), f"the packer ended with code {done.returncode}")
        for path, line in zip_longest(paths, lines[: len(paths)]):
            found = {"error": reason} if line is None else json.loads(line)
            if "error" in found:
                problems[path] = found["error"]
            else:
                target = Path(scratch) / f"{path.stem}{PACKED_SUFFIX}"
                stored.append(_stored(folder, session.path.name, target, found))
    return stored, problems


def _stored(folder: ObjectFolder, session: str, packed: Path, found: Mapping[str, object]) -> RecordedSegment:
    key = f"{RECORDINGS}/{session}/{EVENTS_FOLDER}/{packed.name}"
    size = packed.stat().st_size
    folder.put(key, packed.read_bytes() if size <= _PIECE_BYTES else _pieces(packed))
    return RecordedSegment(
        key=key,
        first_seq=int(packed.stem),
        records=parse_int(found["records"], NATURAL64),
        first_ns=parse_int(found["firstNs"], NATURAL64),
        last_ns=parse_int(found["lastNs"], NATURAL64),
        bytes=size,
    )


def store_documents(folder: ObjectFolder, session: Session) -> None:
    """Store `session.json` and the facts as they are now. Raises ArchiveError."""
    for name in (SESSION_FILE, FACTS_FILE):
        try:
            data = (session.path / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ArchiveError(f"cannot be read: {error}", url=str(session.path / name)) from error
        folder.put(f"{RECORDINGS}/{session.path.name}/{name}", data)


def archived_session(folder: ObjectFolder, name: str) -> Session:
    """What the archived `session.json` says. Raises ArchiveError."""
    key = f"{RECORDINGS}/{name}/{SESSION_FILE}"
    data = folder.get(key)
    with TemporaryDirectory(prefix="trioha-archive-") as scratch:
        (Path(scratch) / SESSION_FILE).write_bytes(data)
        try:
            return open_session(Path(scratch))
        except StoreError as error:
            raise ArchiveError(error.reason, url=folder.url, key=key) from error


def began_before(session: Session, from_ms: int) -> bool:
    """Whether a session began before `from_ms`."""
    return session.wall_ns < from_ms * 1_000_000


def is_old(session: Session, segment: RecordedSegment, *, from_ms: int | None) -> bool:
    """Whether a segment ends before `from_ms`."""
    return from_ms is not None and session.wall_of(segment.last_ns) < from_ms * 1_000_000


def with_session(sessions: tuple[RecordedSession, ...], one: RecordedSession) -> tuple[RecordedSession, ...]:
    """The list with `one` in the place of what it had of that session."""
    others = tuple(other for other in sessions if other.session != one.session)
    return tuple(sorted((*others, one), key=lambda session: session.session))


def without_old(
    sessions: tuple[RecordedSession, ...], documents: Mapping[str, Session], *, from_ms: int
) -> tuple[tuple[RecordedSession, ...], list[str]]:
    """The list without segments that end before `from_ms`, and the keys of what it drops.

    `documents` are what their `session.json` say. A closed session without segments goes, too.
    """
    kept, dropped = [], []
    for one in sessions:
        session = documents[one.session]
        segments = tuple(segment for segment in one.segments if not is_old(session, segment, from_ms=from_ms))
        dropped += [segment.key for segment in one.segments if segment not in segments]
        if segments or not one.closed:
            kept.append(evolve(one, segments=segments))
        else:
            dropped += [f"{RECORDINGS}/{one.session}/{name}" for name in (SESSION_FILE, FACTS_FILE)]
    return tuple(kept), dropped


def _sessions(folder: Path) -> Iterator[Session]:
    try:
        paths = [path for path in folder.iterdir() if (path / SESSION_FILE).is_file()]
    except OSError:
        # A node makes the folder with its first session.
        return
    for path in paths:
        if not is_key(f"{RECORDINGS}/{path.name}/{SESSION_FILE}"):
            continue
        try:
            yield open_session(path)
        except StoreError:
            # Its session.json is being written, or is not one.
            continue


def _node_of(session: Session) -> tuple[str, str, int]:
    node = session.identity
    return node.cluster_name, node.broker_name, node.broker_id


def _segments(session: Path) -> list[Path]:
    """The files of a session's segments by their first seq, each once: packed or not."""
    found: dict[int, Path] = {}
    try:
        for path in sorted((session / EVENTS_FOLDER).iterdir()):
            is_segment = path.suffix in {".seg", PACKED_SUFFIX}
            if is_segment and len(path.stem) == _SEGMENT_DIGITS and path.stem.isdecimal():
                found[int(path.stem)] = path
    except FileNotFoundError:
        pass
    return [found[seq] for seq in sorted(found)]


def _was_written_before(path: Path, from_ms: int | None) -> bool:
    try:
        return from_ms is not None and path.stat().st_mtime_ns < from_ms * 1_000_000
    except OSError:
        # It was deleted, or packed, since the folder was listed.
        return False


def _is_closed(session: Path) -> bool:
    """Whether the last fact says that the session was closed."""
    try:
        with (session / FACTS_FILE).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().splitlines()
        last = json.loads(lines[-1]) if lines else None
    except (OSError, ValueError):
        return False
    return isinstance(last, dict) and last.get("text") == CLOSED_NOTE


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
