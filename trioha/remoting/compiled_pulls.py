"""The numbers of a pull: what differs between two of a consumer for one queue (`remoting.pull_forms`).

Compiled by mypyc where that is possible (`trioha.compiled`). The numbers are searched for; nothing else of a
header is read.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import read_i64_be
from mypy_extensions import i64

from trioha.compiled import use_compiled

SOURCE_SHA256: Final = ""
"""Of this file; the build sets it in the copy that it compiles."""

PULL_START: Final = b'{"code":11,'
LITE_PULL_START: Final = b'{"code":361,'
OPAQUE: Final = b',"opaque":'
QUEUE_OFFSET: Final = b'"queueOffset":"'
COMMIT_OFFSET: Final = b'"commitOffset":"'
CUT: Final = b"\0"
"""Stands in a form for the digits that were cut out: no header that is read by its form has this byte."""
OPAQUE_MAX: Final = 0x7FFFFFFF
DIGITS_MAX: Final = 18
QUOTE: Final = 34
COMMA: Final = 44
MASK_32: Final = 0xFFFFFFFF


@final
class PullNumbers:
    """What a pull has beside its form. Never changed."""

    def __init__(
        self, form: bytes, opaque: i64, queue_offset: i64, commit_offset: i64, header_bytes: i64
    ) -> None:
        self.form: bytes = form
        """The header with `CUT` for the digits of opaque, queueOffset and commitOffset."""
        self.opaque: i64 = opaque
        self.queue_offset: i64 = queue_offset
        self.commit_offset: i64 = commit_offset
        """-1 for that of the form, if it has one."""
        self.header_bytes: i64 = header_bytes
        """Length of the header."""


def read_pull_at(data: bytes, at: i64, frame_bytes_max: i64, header_bytes_max: i64) -> PullNumbers | None:
    """The pull whose frame begins at `at`; None if none is there to its end, or `read_pull` does not read it.

    The limits are those of a frame and of its header. A pull has no body.
    """
    header_at: i64 = at + 8
    if len(data) < header_at:
        return None
    word = read_i64_be(data, at)
    # JSON headers have the type 0: with another one the length is a large number.
    header_bytes: i64 = word & MASK_32
    end: i64 = header_at + header_bytes
    if (
        header_bytes > header_bytes_max
        or word >> 32 != header_bytes + 4
        or header_bytes + 8 > frame_bytes_max
        or end > len(data)
    ):
        return None
    return read_pull(data[header_at:end])


def read_pull(header: bytes) -> PullNumbers | None:
    """The numbers of a pull's header, and what is left of it; None if it is not one of Java's clients."""
    # A number is looked for: with bytes Python first tries them as a number, and makes an error of it.
    if not header.startswith((PULL_START, LITE_PULL_START)) or CUT[0] in header:
        return None
    opaque_at: i64 = header.find(OPAQUE) + len(OPAQUE)
    offset_at: i64 = header.find(QUEUE_OFFSET) + len(QUEUE_OFFSET)
    if opaque_at < len(OPAQUE) or offset_at < len(QUEUE_OFFSET):
        return None
    opaque_end = _digits_end(header, opaque_at, COMMA)
    offset_end = _digits_end(header, offset_at, QUOTE)
    if opaque_end < 0 or offset_end < 0:
        return None
    opaque = _number(header, opaque_at, opaque_end)
    if opaque > OPAQUE_MAX or opaque_at < offset_at:
        # Java writes the fields first.
        return None
    queue_offset = _number(header, offset_at, offset_end)
    commit_offset: i64 = -1
    commit_at: i64 = header.find(COMMIT_OFFSET, 0, opaque_at) + len(COMMIT_OFFSET)
    commit_end: i64 = -1
    if commit_at >= len(COMMIT_OFFSET):
        # Another text, as -1 for none, belongs to the form.
        commit_end = _digits_end(header, commit_at, QUOTE)
    if commit_end >= 0:
        commit_offset = _number(header, commit_at, commit_end)
        if commit_at < offset_at:
            between = header[commit_end:offset_at] + CUT + header[offset_end:opaque_at]
            form = header[:commit_at] + CUT + between
        else:
            between = header[offset_end:commit_at] + CUT + header[commit_end:opaque_at]
            form = header[:offset_at] + CUT + between
    else:
        form = header[:offset_at] + CUT + header[offset_end:opaque_at]
    return PullNumbers(form + CUT + header[opaque_end:], opaque, queue_offset, commit_offset, len(header))


def _digits_end(header: bytes, at: i64, closing: i64) -> i64:
    """Where the digits at `at` end; -1 for others than those of a number as it is printed, or another end."""
    end: i64 = at
    size: i64 = len(header)
    while end < size and 48 <= header[end] <= 57:
        end += 1
    digits: i64 = end - at
    if (
        digits < 1
        or digits > DIGITS_MAX
        or (digits > 1 and header[at] == 48)
        or end >= size
        or header[end] != closing
    ):
        return -1
    return end


def _number(header: bytes, at: i64, end: i64) -> i64:
    value: i64 = 0
    while at < end:
        digit: i64 = header[at]
        value = value * 10 + digit - 48
        at += 1
    return value


use_compiled(__name__)
