"""Java's string hash, and the tags code of a consume queue entry (docs/protocol/store.md#ids-and-hashes).

`String.hashCode` is `h = 31*h + u` over the UTF-16 code units, modulo 2^32. Nearly every record needs it
twice (once for each index key), and a loop over characters would cost more than the rest of dispatch.
`java_hashes` therefore hashes many keys at once: left-padded with zero bytes to one power-of-two width
(leading zeros do not change the hash) they make one large integer, in which neighbouring lanes are folded
pairwise, `high * 31^n + low`, first bytes, then pairs, then fours, until one lane a key is left.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence

from trioha.errors import ConfigError
from trioha.numbers import I32, I64, parse_int

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_MASK_32 = 0xFFFFFFFF
_SIGN = 0x80000000
_WIDTHS = (16, 32, 64, 128)
_CHUNK_BYTES = 16384
"""Bytes hashed at once: large enough to hide the calls, small enough for the first-level cache."""


def _lane_masks() -> tuple[tuple[int, int, int], ...]:
    """(lane bits, mask of the lower lane of each pair, power of 31 that the higher lane is worth)."""
    folds: list[tuple[int, int, int]] = []
    lane_bytes = 1
    while lane_bytes < _WIDTHS[-1]:
        pair = bytes(lane_bytes) + b"\xff" * lane_bytes
        mask = int.from_bytes(pair * (_CHUNK_BYTES // len(pair)), "big")
        folds.append((lane_bytes * 8, mask, pow(31, lane_bytes, 1 << 32)))
        lane_bytes *= 2
    return tuple(folds)


_FOLDS = _lane_masks()
_POWERS = tuple(pow(31, length, 1 << 32) for length in range(_WIDTHS[-1] + 1))


def java_hash(text: str) -> int:
    """`String.hashCode` of `text`, from -2^31 to 2^31 - 1."""
    value = 0
    units = array(
        "H", text.encode("utf-16-le" if sys.byteorder == "little" else "utf-16-be", "surrogatepass")
    )
    for unit in units:
        value = (31 * value + unit) & _MASK_32
    return value - (1 << 32) if value & _SIGN else value


def java_hashes(keys: Sequence[bytes]) -> list[int]:
    """`String.hashCode` of each UTF-8 key, as unsigned numbers below 2^32.

    Keys of up to 64 ASCII bytes are hashed together, others one by one. Bytes that are not UTF-8 count as
    replacement characters, as in Java's decoder.
    """
    if not keys:
        return []
    longest = max(map(len, keys))
    width = next((width for width in _WIDTHS if longest <= width), 0)
    if not width or not b"".join(keys).isascii():
        # Hash the uncommon ones apart: one of them would make all others slow.
        odd = [index for index, key in enumerate(keys) if len(key) > _WIDTHS[-1] or not key.isascii()]
        rest = list(keys)
        for index in odd:
            rest[index] = b""
        hashes = java_hashes(rest)
        for index in odd:
            hashes[index] = _hash_one(keys[index])
        return hashes
    hashes = []
    step = _CHUNK_BYTES // width
    for start in range(0, len(keys), step):
        chunk = keys[start : start + step]
        hashes += _fold(b"".join([key.rjust(width, b"\0") for key in chunk]), width)
    return hashes


def java_hashes_with_prefix(prefix_hashes: Sequence[int], keys: Sequence[bytes]) -> list[int]:
    """`String.hashCode` of each key after a prefix of which only the hash is known.

    Unsigned numbers below 2^32. `prefix_hashes` has the result of `java_hashes` for each key's prefix.
    """
    hashes = java_hashes(keys)
    if keys and max(map(len, keys)) < len(_POWERS) and b"".join(keys).isascii():
        powers = _POWERS
        return [
            (prefix * powers[length] + value) & _MASK_32
            for prefix, length, value in zip(prefix_hashes, map(len, keys), hashes, strict=True)
        ]
    return [
        (prefix * pow(31, _utf16_units(key), 1 << 32) + value) & _MASK_32
        for prefix, key, value in zip(prefix_hashes, keys, hashes, strict=True)
    ]


def _utf16_units(key: bytes) -> int:
    return len(key) if key.isascii() else len(key.decode("utf-8", "replace").encode("utf-16-le")) // 2


def _fold(padded: bytes, width: int) -> list[int]:
    lanes = int.from_bytes(padded, "big")
    for lane_bits, mask, power in _FOLDS:
        if lane_bits == width * 8:
            break
        if lane_bits <= 32:
            # Lanes still hold exact values: taking away (2^bits - power) * high leaves power * high + low.
            lanes -= ((1 << lane_bits) - power) * ((lanes >> lane_bits) & mask)
        else:
            lanes = (lanes & mask) + ((lanes >> lane_bits) & mask) * power
    words = array("I", lanes.to_bytes(len(padded), "big"))
    if sys.byteorder == "little":
        words.byteswap()
    return words[width // 4 - 1 :: width // 4].tolist()


def _hash_one(key: bytes) -> int:
    if key.isascii():
        value = 0
        # 128 characters at a time: a key of 32 KiB costs no more per byte than a short one.
        step = _WIDTHS[-1]
        for start in range(0, len(key), step):
            chunk = key[start : start + step]
            value = (
                value * pow(31, len(chunk), 1 << 32) + _fold(chunk.rjust(step, b"\0"), step)[0]
            ) & _MASK_32
        return value
    return java_hash(key.decode("utf-8", "replace")) & _MASK_32


def tags_code(tags: str) -> int:
    """Tags code of a message: the hash of its whole TAGS property, 0 if it has none."""
    return java_hash(tags) if tags else 0


class DelayLevels:
    """messageDelayLevel: how long each delay level waits. Levels count from 1."""

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        """Raises ConfigError for anything but numbers with a unit of s, m, h or d."""
        units_ms = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
        self._delays_ms: list[int] = []
        for part in text.split():
            match = re.fullmatch(r"(\d+)([smhd])", part, re.ASCII)
            if match is None:
                raise ConfigError(
                    f"{part!r} is not a delay",
                    key="messageDelayLevel",
                    hint="levels look like 30s, 5m, 2h or 1d",
                )
            self._delays_ms.append(int(match[1]) * units_ms[match[2]])

    @property
    def max_level(self) -> int:
        """Highest level there is."""
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int | None:
        """Delay of the level; None if it does not exist."""
        return self._delays_ms[level - 1] if 1 <= level <= len(self._delays_ms) else None

    def tags_code(self, delay: str, *, store_timestamp_ms: int) -> int | None:
        """Tags code of a record in the schedule topic: its due time, ms. None if DELAY is not a level.

        A level above the highest counts as the highest; without any levels it is due after 1 s, as the
        broker has it.
        """
        try:
            level = parse_int(delay, I32)
        except ValueError:
            return None
        if level <= 0:
            return None
        delay_ms = self.delay_ms(min(level, self.max_level))
        # A master's record may claim any time; its entry holds 64 bits.
        return min(store_timestamp_ms + (1000 if delay_ms is None else delay_ms), I64.high)
