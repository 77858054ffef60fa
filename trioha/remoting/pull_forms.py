"""Forms of pulls: what the pulls of a consumer for one queue have in common.

Theory of operation. A push consumer asks for each of its queues again and again, and between two requests
only opaque, queueOffset and commitOffset differ. `compiled_pulls.read_pull` cuts these numbers out of a
header. What is left is the form: a key, under which the fields are kept that the codec has read from the
first pull of the form. The handler of pulls may keep with it what follows from these fields.

`read_pull` searches for the numbers and reads nothing else. So a form is kept only if the codec reads the
same header with other numbers as the same fields with these numbers: what was cut out is the three fields'
values, wherever it stands. Forms are bounded in number and size, whatever peers send: with too many all are
dropped, and those in use come back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define

from trioha.remoting import compiled_pulls
from trioha.remoting.command import RemotingCommand
from trioha.remoting.compiled_pulls import CUT, PullNumbers

FORMS_MAX: Final = 2048
FORM_BYTES_MAX: Final = 1024
"""Of a header that is read by its form: those of RocketMQ's clients have some 400."""


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
        first, *rest = pull.form.split(CUT)
        header = first + b"".join(b"%d%b" % (number, part) for number, part in enumerate(rest, 901))
        other = compiled_pulls.read_pull(header)
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
