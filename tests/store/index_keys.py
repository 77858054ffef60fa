"""Columns of keys for an index, see `trioha.store.compiled_index.KEY_BYTES`."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack


def column(hashes: Iterable[int], physical_offsets: Iterable[int], times_ms: Iterable[int]) -> bytes:
    """The keys with these hashes, as `tags.java_hashes` computes them, offsets and store times."""
    return b"".join(pack(">qqq", *key) for key in zip(hashes, physical_offsets, times_ms, strict=True))
