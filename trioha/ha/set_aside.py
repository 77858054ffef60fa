"""Logs that a slave has set aside, each in a folder beside its log: `commitlog.diverged-20261121T0312...`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from trioha.recording.events import CloseReason


def set_aside_folder(log_directory: Path, reason: CloseReason) -> Path:
    """Where a log goes that is set aside now."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return log_directory.with_name(f"{log_directory.name}.{reason.name.lower()}-{stamp}")


def has_set_aside(log_directory: Path) -> bool:
    """Whether a log was set aside, and not removed since. Reads one folder."""
    return any(log_directory.parent.glob(f"{log_directory.name}.*-*T*.*"))
