"""Forms of pulls: what the pulls of a consumer for one queue have in common.

Theory of operation. A push consumer asks for each of its queues again and again, and between two requests
only opaque, queueOffset and commitOffset differ. `remoting.kernel` cuts these numbers out of a header, and
what is left, the form, finds the fields that the plain code has read the first time. Whoever handles pulls
may keep with a form what follows from its fields. Forms are bounded in number and size, whatever peers send:
with too many all are dropped, and those in use come back.
"""

from __future__ import annotations

from typing import Final

from attrs import define

from trioha.remoting import compiled
from trioha.remoting.command import RemotingCommand

FORMS_MAX: Final = 2048
FORM_BYTES_MAX: Final = 1024
"""Of the header of a pull that is kept: those of RocketMQ's clients have some 400."""


class PullForm:
    """A header of pulls without opaque, queueOffset and commitOffset."""

    __slots__ = ("command", "kept")

    def __init__(self, command: RemotingCommand) -> None:
        self.command = command
        """The first pull of the form."""
        self.kept: object = None
        """What the handler of pulls keeps with the form."""


@define
class KnownPull(RemotingCommand):
    """A pull of a known form. Its ext fields are complete, as those of any request."""

    form: PullForm | None = None
    queue_offset: int = 0
    commit_offset: int | None = None
    """None for that of the form."""


class PullForms:
    """The forms of the pulls that a server has received."""

    def __init__(self, *, forms_max: int = FORMS_MAX) -> None:
        self._forms_max = forms_max
        self._forms: dict[bytes, PullForm] = {}

    def __len__(self) -> int:
        return len(self._forms)

    def read(self, header: bytes) -> KnownPull | None:
        """The pull with this header, if its form is known; None for any other header."""
        pull = compiled.kernel.read_pull(header)
        if pull is None or (form := self._forms.get(pull.form)) is None:
            return None
        first = form.command
        assert isinstance(first.ext_fields, dict)
        fields = first.ext_fields.copy()
        fields["queueOffset"] = str(pull.queue_offset)
        commit_offset = pull.commit_offset
        if commit_offset >= 0:
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
            form,
            pull.queue_offset,
            commit_offset if commit_offset >= 0 else None,
        )

    def learn(self, header: bytes, command: RemotingCommand) -> None:
        """Keep the form of `header`, which the plain code has read as `command`, if it is that of a pull."""
        if len(header) > FORM_BYTES_MAX:
            return
        pull = compiled.kernel.read_pull(header)
        if pull is None:
            return
        if len(self._forms) >= self._forms_max:
            self._forms.clear()
        self._forms[pull.form] = PullForm(command)
