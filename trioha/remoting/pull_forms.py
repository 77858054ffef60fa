"""Forms of pulls: what the pulls of a consumer for one queue have in common.

Theory of operation. A push consumer asks for each of its queues again and again, and between two requests
only opaque, queueOffset and commitOffset differ. `read_pull` cuts these numbers out of a header. What is left
is the form: a key, under which the fields are kept that the codec has read from the first pull of the form.
The handler of pulls may keep with it what follows from these fields.

`read_pull` searches for the numbers and reads nothing else. So a form is kept only if the codec reads the
same header with other numbers as the same fields with these numbers: what was cut out is the three fields'
values, wherever it stands. Forms are bounded in number and size, whatever peers send: with too many all are
dropped, and those in use come back.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from attrs import define

from trioha.numbers import I32
from trioha.remoting.command import RemotingCommand

FORMS_MAX: Final = 2048
FORM_BYTES_MAX: Final = 1024
"""Of a header that is read by its form: those of RocketMQ's clients have some 400."""
_HEAD: Final = Struct(">II")
_STARTS: Final = (b'{"code":11,', b'{"code":361,')
_CUT: Final = b"\0"
"""Stands in a form for the digits that were cut out: no header that is read by its form has this byte."""
_OFFSET_DIGITS_MAX: Final = 18
_OPAQUE_DIGITS_MAX: Final = 10


@define
class PullNumbers:
    """What a pull has beside its form. Never changed."""

    form: bytes
    """The header with zero bytes for the digits of opaque, queueOffset and commitOffset."""
    opaque: int
    queue_offset: int
    commit_offset: int
    """-1 for that of the form, if it has one."""
    header_bytes: int
    """Length of the header."""


def read_pull_at(data: bytes, at: int, frame_bytes_max: int, header_bytes_max: int) -> PullNumbers | None:
    """The pull whose frame begins at `at`; None if none is there to its end, or `read_pull` does not read it.

    The limits are those of a frame and of its header. A pull has no body.
    """
    header_at = at + 8
    if len(data) < header_at:
        return None
    # JSON headers have the type 0: with another one the length is a large number.
    size, header_bytes = _HEAD.unpack_from(data, at)
    end = header_at + header_bytes
    if (
        header_bytes > header_bytes_max
        or size != header_bytes + 4
        or size > frame_bytes_max - 4
        or end > len(data)
    ):
        return None
    return read_pull(data[header_at:end])


def read_pull(header: bytes) -> PullNumbers | None:
    """The numbers of a pull's header, and what is left of it; None if it is not one of Java's clients."""
    if not header.startswith(_STARTS) or _CUT in header:
        return None
    opaque = _digits(header, b',"opaque":', b",", _OPAQUE_DIGITS_MAX)
    queue_offset = _digits(header, b'"queueOffset":"', b'"', _OFFSET_DIGITS_MAX)
    if opaque is None or queue_offset is None or int(header[slice(*opaque)]) > I32.high:
        return None
    commit_offset = _digits(header, b'"commitOffset":"', b'"', _OFFSET_DIGITS_MAX)
    cuts = [opaque, queue_offset]
    if commit_offset is not None:
        # Another text, as -1 for none, belongs to the form.
        cuts.append(commit_offset)
    parts = []
    copied = 0
    for start, end in sorted(cuts):
        parts.append(header[copied:start])
        copied = end
    parts.append(header[copied:])
    return PullNumbers(
        _CUT.join(parts),
        int(header[slice(*opaque)]),
        int(header[slice(*queue_offset)]),
        -1 if commit_offset is None else int(header[slice(*commit_offset)]),
        len(header),
    )


def _digits(header: bytes, before: bytes, after: bytes, digits_max: int) -> tuple[int, int] | None:
    """Where the digits between two texts are; None for others than those of a number as it is printed."""
    start = header.find(before)
    if start < 0:
        return None
    start += len(before)
    end = header.find(after, start, start + digits_max + 1)
    digits = header[start:end]
    if end < 0 or not digits.isdigit() or (end - start > 1 and digits[0] == ord("0")):
        return None
    return start, end


class PullForm:
    """A header of pulls without opaque, queueOffset and commitOffset."""

    __slots__ = ("_first", "kept")

    def __init__(self, first: RemotingCommand) -> None:
        """`first` is the first pull of the form."""
        self._first = first
        self.kept: object = None
        """What the handler of pulls keeps with the form."""

    def command_of(self, pull: PullNumbers) -> KnownPull:
        """The request of this form with the numbers of `pull`."""
        first = self._first
        assert isinstance(first.ext_fields, dict)
        fields = first.ext_fields.copy()
        fields["queueOffset"] = str(pull.queue_offset)
        commit_offset = pull.commit_offset if pull.commit_offset >= 0 else None
        if commit_offset is not None:
            fields["commitOffset"] = str(commit_offset)
        return KnownPull(
            first.code,
            pull.opaque,
            0,
            None,
            fields,
            b"",
            first.language,
            first.version,
            first.serialize_type,
            (),
            self,
            pull.queue_offset,
            commit_offset,
        )


@define
class KnownPull(RemotingCommand):
    """A pull of a known form. Its ext fields are complete, as those of any request."""

    form: PullForm | None = None
    queue_offset: int = 0
    commit_offset: int | None = None
    """None for that of the form."""


@define
class FoundPull:
    """A pull of a known form that was received. Never changed."""

    form: PullForm
    pull: PullNumbers
    frame_bytes: int

    def command(self) -> KnownPull:
        """The request."""
        return self.form.command_of(self.pull)


class PullForms:
    """The forms of the pulls that a server has received."""

    def __init__(self, *, forms_max: int = FORMS_MAX) -> None:
        self._forms_max = forms_max
        self._forms: dict[bytes, PullForm] = {}

    def __len__(self) -> int:
        return len(self._forms)

    def find(self, form: bytes) -> PullForm | None:
        """The form of that text, if it is known."""
        return self._forms.get(form)

    def keep(
        self, pull: PullNumbers, command: RemotingCommand, decode: Callable[[bytes], RemotingCommand]
    ) -> None:
        """Keep the form of `pull`, whose header `decode` has read as `command`, if it is one."""
        form = PullForm(command)
        first, *rest = pull.form.split(_CUT)
        header = first + b"".join(b"%d%b" % (number, part) for number, part in enumerate(rest, 901))
        other = read_pull(header)
        if other is None or _fields(form.command_of(other)) != _fields(decode(header)):
            return
        if len(self._forms) >= self._forms_max:
            self._forms.clear()
        self._forms[pull.form] = form


def _fields(command: RemotingCommand) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.remark,
        command.ext_fields,
        command.language,
        command.version,
    )
