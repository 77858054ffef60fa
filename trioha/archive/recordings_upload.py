"""Archiving recorded sessions: their complete segments are packed and uploaded, a few in each step.

An archive has one head for the log and the recordings: readers list the segments of a session from it without
opening any, retention and sweeps find in it what is needed, and two writers of heads would fence each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import evolve

from trioha.archive.context import ArchiveContext
from trioha.archive.draft import Draft
from trioha.archive.layout import RecordedSegment
from trioha.archive.recordings import (
    Waiting,
    archived_session,
    began_before,
    check_packer,
    is_old,
    store_documents,
    store_segments,
    waiting_sessions,
    with_session,
    without_old,
)
from trioha.recording.reader import Session

SEGMENTS_MAX: Final = 4
"""Segments that one step packs."""


class RecordingsUpload:
    """Uploads the sessions in a folder. Everything here blocks, and raises ArchiveError."""

    def __init__(self, context: ArchiveContext, recordings: Path | None) -> None:
        """`recordings`: a folder of recorded sessions; None to upload nothing."""
        self._context = context
        self._folder = context.folder
        self._recordings = recordings
        self._unpackable: set[Path] = set()
        """Segments that cannot be packed: named once, and left out."""
        self._old_segments: set[Path] = set()
        """Segments that end before what is kept: packed once to find that out."""
        self._sessions: dict[str, Session] = {}
        """Sessions of the archive whose clocks are known, by name."""
        self._due_s = 0.0
        """When to look again for segments (monotonic)."""

    def begin(self) -> None:
        """Raises ArchiveError if segments cannot be packed here."""
        if self._recordings is not None:
            check_packer(self._folder.url)

    def upload(self, draft: Draft, *, from_ms: int | None) -> None:
        """Store complete segments, up to `SEGMENTS_MAX`, that do not end before `from_ms`."""
        now_s = self._context.monotonic()
        if self._recordings is None or now_s < self._due_s:
            return
        self._due_s = now_s + self._context.settings.recordings_s
        left = SEGMENTS_MAX
        for waiting in waiting_sessions(
            self._recordings, draft.head.recordings, from_ms=from_ms, old=self._old_segments
        ):
            if self._context.is_stopping():
                return
            new = [path for path in waiting.segments if path not in self._unpackable]
            added = self._packed(draft, waiting.session, new[:left], from_ms) if new[:left] else []
            if len(new) > left:
                self._due_s = now_s
                draft.is_more_recorded = True
            is_closed = waiting.is_ended and len(new) <= left
            left -= min(left, len(new))
            if added or is_closed:
                self._add(draft, waiting, added, is_closed=is_closed, from_ms=from_ms)

    def _packed(
        self, draft: Draft, session: Session, paths: Sequence[Path], from_ms: int | None
    ) -> list[RecordedSegment]:
        """Pack and store segments; those that are kept."""
        stored, problems = store_segments(self._folder, session, paths)
        old = [one for one in stored if is_old(session, one, from_ms=from_ms)]
        draft.dropped += [one.key for one in old]
        seqs = {one.first_seq for one in old}
        self._old_segments.update(path for path in paths if int(path.stem) in seqs)
        self._unpackable.update(problems)
        for path, reason in problems.items():
            self._context.notify(f"{path} is not archived: {reason}")
        return [one for one in stored if one not in old]

    def _add(
        self,
        draft: Draft,
        waiting: Waiting,
        added: Sequence[RecordedSegment],
        *,
        is_closed: bool,
        from_ms: int | None,
    ) -> None:
        """List a session's new segments in the draft, and store its documents."""
        is_known = any(one.session == waiting.session.path.name for one in draft.head.recordings)
        if not added and not is_known and from_ms is not None and began_before(waiting.session, from_ms):
            # All of it is too old.
            return
        store_documents(self._folder, waiting.session)
        segments = sorted((*waiting.archived.segments, *added), key=lambda one: one.first_seq)
        one = evolve(waiting.archived, segments=tuple(segments), closed=is_closed)
        draft.head = evolve(draft.head, recordings=with_session(draft.head.recordings, one))
        draft.recorded += len(added)

    def retain(self, draft: Draft, *, from_ms: int) -> None:
        """Drop segments that end before `from_ms`, and closed sessions without others."""
        for one in draft.head.recordings:
            if one.session not in self._sessions:
                self._sessions[one.session] = archived_session(self._folder, one.session)
        recordings, dropped = without_old(draft.head.recordings, self._sessions, from_ms=from_ms)
        draft.dropped += dropped
        draft.head = evolve(draft.head, recordings=recordings)
