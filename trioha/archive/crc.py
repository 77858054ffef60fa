"""CRC-32 of bytes in a row from the CRCs of their parts."""

from __future__ import annotations

from typing import Final

_POLYNOMIAL: Final = 0xEDB88320


def combined_crc32(first: int, second: int, *, second_bytes: int) -> int:
    """CRC-32 of two stretches of bytes in a row, of which the second one has `second_bytes`.

    To append a byte is linear over GF(2): `first` is multiplied by x^(8 * second_bytes) modulo the
    polynomial, by squaring.
    """
    power, factor = 1 << 31, 1 << 23
    # Bit 31 is x^0; the factor begins with x^8.
    count = second_bytes
    while count:
        if count & 1:
            power = _product(power, factor)
        factor = _product(factor, factor)
        count >>= 1
    return _product(first, power) ^ second


def _product(left: int, right: int) -> int:
    """Product of two polynomials modulo the CRC's."""
    result = 0
    bit = 1 << 31
    while bit:
        if left & bit:
            result ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
        bit >>= 1
    return result
