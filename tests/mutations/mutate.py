"""Valid bytes made wrong: what a bad disk, a bad peer or a bad line may do to them.

Seeded and plain, so that twenty thousand inputs cost seconds.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

NUMBERS = (-(2**63), -(2**31), -(2**15), -1, 0, 1, 127, 255, 2**15 - 1, 2**24, 2**31 - 1, 2**63 - 1)
"""Values that length fields, offsets and flags take where it hurts."""


def mutants(seed: int, valid: Sequence[bytes], number: int) -> Iterator[bytes]:
    """`number` inputs, each one of `valid` with one to four mutations."""
    chance = random.Random(f"mutants {seed}")
    for _ in range(number):
        data = bytearray(chance.choice(valid))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
            chance.choice(_MUTATIONS)(chance, data, valid)
        yield bytes(data)


def pieces(chance: random.Random, data: bytes) -> Iterator[bytes]:
    """`data` as a socket may give it: whole, or in up to six pieces."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 2, 5))))
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        yield data[start:end]


def _flip_bit(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set_byte(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))


def _set_number(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A field of 2, 4 or 8 bytes, mostly where fields are: near the front, at a multiple of 4."""
    width = chance.choice((2, 4, 4, 8))
    last = len(data) - width
    if last < 0:
        return
    at = chance.randrange(last + 1)
    if chance.random() < 0.7:
        at = min(at, chance.randrange(96))
        at -= at % 4
    value = chance.choice((*NUMBERS, len(data), len(data) - 1, len(data) + 1))
    data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "big")


def _truncate(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _remove(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = chance.randrange(len(data) + 1)
    del data[start : start + chance.choice((1, 2, 4, 8, 30))]


def _insert(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8, 100)))


def _repeat(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = chance.randrange(len(data) + 1)
    data[start:start] = data[start : start + chance.choice((1, 8, 50))] * chance.choice((1, 2, 40))


def _splice(chance: random.Random, data: bytearray, valid: Sequence[bytes]) -> None:
    other = chance.choice(valid)
    start = chance.randrange(len(other) + 1)
    data[chance.randrange(len(data) + 1) :] = other[start : start + 4096]


_MUTATIONS = (
    *(_flip_bit, _flip_bit, _set_byte, _set_number, _set_number),
    *(_truncate, _remove, _insert, _repeat, _splice),
)
