"""Moments as people type them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from trioha_monitor.moments import MomentError, parse_moment

START_MS = 1_767_323_045_000
"""2026-01-02 03:04:05 UTC."""
END_MS = START_MS + 3_600_000


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "after_start_ms"),
    [
        ("+90s", 1_090_000), ("-5m", 700_000), ("+200ms", 1_000_200), ("+1h", 4_600_000), ("+2", 1_002_000),
        ("0%", 0), ("25 %", 900_000), ("200%", 3_600_000), ("03:10:05", 360_000), ("03:04:05.5", 500),
        ("0:03:05", 185_000),
    ],
)  # fmt: skip
def test_a_moment(text: str, after_start_ms: int) -> None:
    now_ms = START_MS + 1_000_000
    assert parse_moment(text, now_ms=now_ms, start_ms=START_MS, end_ms=END_MS) == START_MS + after_start_ms


@pytest.mark.parametrize("text", ["", "noon", "5", "23:00:00", "1:2:3:4", "%"])
def test_what_names_no_moment_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(MomentError) as caught:
        parse_moment(text, now_ms=START_MS, start_ms=START_MS, end_ms=END_MS)
    assert "\n" not in str(caught.value)
