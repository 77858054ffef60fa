"""What all parts of one archiver share."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from trioha.archive.objects import ObjectFolder
from trioha.archive.settings import ArchiveSettings
from trioha.archive.witness import WitnessedClock


@frozen(kw_only=True)
class ArchiveContext:
    """The archive, its settings, its times, and the archiver's caller."""

    folder: ObjectFolder
    settings: ArchiveSettings
    clock: WitnessedClock
    monotonic: Callable[[], float]
    """Seconds of a clock that is never set."""
    sleep: Callable[[float], object]
    """Waits for seconds, or until the archiver is stopped."""
    is_stopping: Callable[[], bool]
    notify: Callable[[str], object]
    """Called with remarks for people."""
