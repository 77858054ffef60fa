"""Pulls that wait for messages of their queue, or until their time is over."""

from __future__ import annotations

from typing import Protocol

from trioha.broker.long_polls import LongPoll
from trioha.broker.pull_checks import Pull
from trioha.deferred import Deferred
from trioha.net.transport import release
from trioha.remoting.command import RemotingCommand


class Answers(Protocol):
    """Reads queues for pulls that wait."""

    def answer_later(self, pull: Pull, offset: int) -> RemotingCommand | int:
        """The response, or the queue offset to wait for: each entry is read once. Raises BadRequestError."""

    def answer_now(self, pull: Pull) -> RemotingCommand:
        """The response to a pull whose time is over. Raises BadRequestError."""


class WaitingPull(Deferred[RemotingCommand]):
    """A pull that waits until its queue has a message for it, or its time is over."""

    __slots__ = ("_answer", "_answers", "_error", "_offset", "_poll", "_pull")

    def __init__(self, answers: Answers, pull: Pull) -> None:
        super().__init__()
        self._answers = answers
        self._pull = pull
        self._offset = pull.header.queue_offset
        """Entries before it are not for the consumer."""
        self._poll: LongPoll | None = None
        self._answer: RemotingCommand | None = None
        self._error: Exception | None = None

    def begin(self, poll: LongPoll) -> None:
        """Wait until `poll` calls."""
        self._poll = poll
        if poll.is_over:
            self.ended()

    def arrived(self) -> None:
        """Entries have come to the queue."""
        try:
            answer = self._answers.answer_later(self._pull, self._offset)
        except Exception as error:  # noqa: BLE001 - `result` raises it, for the border of requests
            self._end(None, error)
            return
        if isinstance(answer, RemotingCommand):
            self._end(answer, None)
        else:
            self._offset = answer

    def ended(self) -> None:
        """The time is over."""
        try:
            answer = self._answers.answer_now(self._pull)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(None, error)
        else:
            self._end(answer, None)

    def _end(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        self._answer, self._error = answer, error
        self._close()
        self._ready()

    def _close(self) -> None:
        if self._poll is not None:
            poll, self._poll = self._poll, None
            poll.close()

    def result(self) -> RemotingCommand:
        """The response."""
        answer, self._answer = self._answer, None
        if answer is None:
            assert self._error is not None
            raise self._error
        return answer

    def abandon(self) -> None:
        """Wait no more."""
        super().abandon()
        self._close()
        if self._answer is not None:
            # Slices would keep the space of deleted files.
            release(list(self._answer.slices))
            self._answer = None
