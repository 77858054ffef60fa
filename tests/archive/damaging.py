"""Damage in archives."""

from __future__ import annotations

from collections.abc import Callable

from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader

Change = Callable[[bytearray], object]


def flip(at: int, *, bit: int = 4) -> Change:
    """Flip a bit of one byte."""

    def change(data: bytearray) -> None:
        data[at] ^= 1 << bit

    return change


def damage(url: str, key: str, change: Change) -> None:
    """Change the bytes of a stored object."""
    folder = ObjectFolder.open(url)
    data = bytearray(folder.get(key))
    change(data)
    folder.put(key, bytes(data))


def damage_object(url: str, number: int, change: Change) -> str:
    """Change the bytes of a log object; returns its key."""
    reader = ArchiveReader.open(url)
    key = list(reader.objects(reader.generation()))[number].key
    damage(url, key, change)
    return key
