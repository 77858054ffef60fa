"""Pulls that wait for messages of their queue, or until their time is over."""

from __future__ import annotations

from typing import Protocol

from trioha.broker.long_polls import LongPoll
from trioha.broker.pull_checks import Pull
from trioha.remoting.command import RemotingCommand
from trioha.remoting.serving import WaitingAnswer


class Answers(Protocol):
    """Reads queues for pulls that wait."""

    def answer_later(self, pull: Pull, offset: int) -> RemotingCommand | int:
        """The response, or the queue offset to wait for: each entry is read once. Raises BadRequestError."""

    def answer_now(self, pull: Pull) -> RemotingCommand:
        """The response to a pull whose time is over. Raises BadRequestError."""


class WaitingPull(WaitingAnswer):
    """A pull that waits until its queue has a message for it, or its time is over."""

    __slots__ = ("_answers", "_offset", "_poll", "_pull")

    def __init__(self, answers: Answers, pull: Pull) -> None:
        super().__init__()
        self._answers = answers
        self._pull = pull
        self._offset = pull.header.queue_offset
        """Entries before it are not for the consumer."""
        self._poll: LongPoll | None = None

    def begin(self, poll: LongPoll) -> None:
        """Wait until `poll` wakes it."""
        self._poll = poll
        if poll.is_over:
            self.wake()

    def answer(self) -> RemotingCommand | None:
        """The response; None if nothing has come for the consumer, and there is time left."""
        poll = self._poll
        assert poll is not None, "it was begun"
        answer: RemotingCommand | int
        try:
            if poll.is_over:
                answer = self._answers.answer_now(self._pull)
            else:
                answer = self._answers.answer_later(self._pull, self._offset)
        except BaseException:
            poll.close()
            raise
        if isinstance(answer, RemotingCommand):
            poll.close()
            return answer
        self._offset = answer
        return None

    def abandon(self) -> None:
        """Wait no more."""
        super().abandon()
        if self._poll is not None:
            self._poll.close()
