"""The archiver of a node, in a process of its own.

Checking and compressing the log would hold the interpreter's lock of the node for milliseconds at a time, and
each put would wait for it; the archiver's memory and descriptors are not the node's either. The node writes a
line `step` for each step and reads lines of JSON: questions for the end of the log, then what the step has
reached, or why the archiver ends (`trioha.node.archive_child`). The end of its input ends the archiver, so
that it never outlives its node.

An archiver may be killed at any moment: what it had stored and not yet named in a head is stored again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, get_type_hints

import structlog
import trio
from attrs import asdict

from trioha.net.error_boundary import is_thread_shortage
from trioha.node.archive_service import ArchiveFault
from trioha.node.archive_task import ArchiveProgress, ArchiveTask

log = structlog.get_logger(__name__)

STOP_S: Final = 1.0
"""How long a stopping node waits for the step that runs and for the end of the archiver; then it kills it."""
ANSWER_BYTES_MAX: Final = 64 * 1024
SHOWN_BYTES_MAX: Final = 200
"""Of an answer that is wrong."""
STEP: Final = b"step\n"
_STATES: Final = ("waiting", "fenced", "damaged")
_PROGRESS_TYPES: Final = get_type_hints(ArchiveProgress)
PROGRAM: Final = (sys.executable, "-m", "trioha.node.archive_child")


@asynccontextmanager
async def archiver_process(
    task: ArchiveTask, *, end_offset: Callable[[], int], program: Sequence[str] = PROGRAM
) -> AsyncIterator[ArchiverProcess]:
    """An archiver that works on `task`; its process ends with the context. Raises ArchiveFault.

    `end_offset` returns the end of the log; `program` is what is run, with the task as its last argument.
    Cancellation takes effect when the process has ended: after `STOP_S` it is killed.
    """
    command = [*program, json.dumps(asdict(task))]
    try:
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except (OSError, RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not is_thread_shortage(error):
            raise
        raise ArchiveFault(f"no process for the archiver: {error}") from error
    archiver = ArchiverProcess(process, end_offset=end_offset)
    try:
        yield archiver
    finally:
        with trio.CancelScope(shield=True):
            await archiver.end()


class ArchiverProcess:
    """The node's side of an archiver process."""

    def __init__(self, process: trio.Process, *, end_offset: Callable[[], int]) -> None:
        assert process.stdin is not None, "the process was started with pipes"
        assert process.stdout is not None, "the process was started with pipes"
        self._process = process
        self._end_offset = end_offset
        self._requests = process.stdin
        self._answers = process.stdout
        self._received = bytearray()
        self._is_working = False

    @property
    def pid(self) -> int:
        """Of the archiver's process."""
        return self._process.pid

    async def step(self) -> ArchiveProgress:
        """Archive what is there, or a part of it. Raises ArchiveFault.

        After a cancellation only `end` may be called: the step goes on.
        """
        assert not self._is_working, "one step at a time"
        self._is_working = True
        await self._request(STEP)
        answer = await self._answer()
        self._is_working = False
        if isinstance(answer, ArchiveFault):
            raise answer
        return answer

    def kill(self) -> None:
        """End the process at once, also within a step."""
        self._process.kill()

    async def end(self) -> None:
        """Let the step that runs end, then the process; kill it if that takes longer than `STOP_S`."""
        with trio.move_on_after(STOP_S):
            if self._is_working:
                # Whatever it has reached: the next start of the node looks at the archive.
                with suppress(ArchiveFault):
                    await self._answer()
            await self._requests.aclose()
            await self._process.wait()
        if self._process.poll() is None:
            log.info("the archiver did not end in time and is killed", pid=self.pid, within_s=STOP_S)
            self._process.kill()
        await self._process.wait()
        await self._requests.aclose()
        await self._answers.aclose()

    async def _request(self, line: bytes) -> None:
        # A process that has ended refuses it; how it did is found when its output ends.
        # A pipe has room for it, so that it is sent as a whole also while the node is cancelled.
        with trio.CancelScope(shield=True), suppress(trio.BrokenResourceError):
            await self._requests.send_all(line)

    async def _answer(self) -> ArchiveProgress | ArchiveFault:
        """The answer to a step, after those of its questions. Raises ArchiveFault for another line."""
        while True:
            line = await self._line()
            try:
                answer = json.loads(line)
                if answer != {"ask": "end"}:
                    return _decoded(answer)
            except (ValueError, RecursionError) as error:
                self._is_working = False
                text = line[:SHOWN_BYTES_MAX].decode(errors="replace")
                raise ArchiveFault(f"the archiver gave a wrong answer: {text}") from error
            await self._request(b"%d\n" % self._end_offset())

    async def _line(self) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            data: bytes | bytearray = b""
            if len(self._received) <= ANSWER_BYTES_MAX:
                with suppress(trio.BrokenResourceError):
                    data = await self._answers.receive_some()
            if not data:
                self._is_working = False
                raise ArchiveFault(await self._end_text())
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    async def _end_text(self) -> str:
        """How the process has ended, which closed its output; killed if it goes on all the same."""
        with trio.move_on_after(STOP_S):
            await self._process.wait()
        code = self._process.poll()
        if code is None:
            return "the archiver does not answer"
        return (
            f"the archiver was killed by signal {-code}"
            if code < 0
            else f"the archiver ended with code {code}"
        )


def _decoded(answer: Any) -> ArchiveProgress | ArchiveFault:
    """What an archiver has answered to a step. Raises ValueError for anything else."""
    if not isinstance(answer, dict) or "state" not in answer:
        types = {name: type(value) for name, value in answer.items()} if isinstance(answer, dict) else {}
        if types != _PROGRESS_TYPES:
            raise ValueError("the fields are not those of a step")
        return ArchiveProgress(**answer)
    state, reason = answer["state"], answer.get("reason")
    archived_offset, generation = answer.get("archived_offset"), answer.get("generation", "")
    if (
        state not in _STATES
        or not isinstance(reason, str)
        or type(archived_offset) not in {int, type(None)}
        or not isinstance(generation, str)
    ):
        raise ValueError("the fields are not those of an end")
    return ArchiveFault(reason, state=state, archived_offset=archived_offset, generation=generation)
