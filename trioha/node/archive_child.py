"""The process of a node's archiver (`trioha.node.archive_process` starts it), and what it says to its node.

Each line of its input is `step`, or the answer to a question for the log's end: a number. Each line of its
output is JSON: `{"ask": "end"}`, or what the step has reached, or `{"state": ..., "reason": ...}`, after
which it ends. The end of its input ends it at once, also within a step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, Final

import structlog
from attrs import asdict
from cattrs import structure

from trioha.archive.archiver import Archiver, ArchiveStep
from trioha.archive.errors import ArchiveError, DamagedSourceError, FencedError
from trioha.archive.objects import ObjectFolder
from trioha.archive.recordings import check_packer
from trioha.archive.settings import ArchiveSettings
from trioha.node.archive_task import ArchiveProgress, ArchiveTask
from trioha.node.logs import configure_logs

log = structlog.get_logger(__name__)

NICENESS: Final = 10
"""Of its steps: on a busy machine, puts have priority."""


class Node:
    """The node at the other ends of the pipes."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._requests = requests
        self._answers = answers
        self._lines: SimpleQueue[bytes] = SimpleQueue()

    def listen(self) -> None:
        """Read lines in a thread, which ends the process when there are no more: the node has ended."""
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._requests:
            self._lines.put(line)
        os._exit(0)

    def next_line(self) -> bytes:
        """Wait for the next line."""
        return self._lines.get()

    def end_offset(self) -> int:
        """The end of the log as of now."""
        self.say({"ask": "end"})
        return int(self.next_line())

    def say(self, values: dict[str, Any]) -> None:
        """Write a line."""
        self._answers.write(json.dumps(values).encode() + b"\n")
        self._answers.flush()


def run(task: ArchiveTask, node: Node) -> None:
    """Do steps until the archive cannot go on, and say why."""
    archiver: Archiver | None = None
    try:
        node.next_line()
        archiver = Archiver(
            ObjectFolder.open(task.url, create=True),
            Path(task.store),
            cluster_name=task.cluster_name,
            broker_name=task.broker_name,
            commit_log=Path(task.commit_log),
            settings=ArchiveSettings(
                interval_s=task.interval_s,
                keep_s=None if task.keep_ms is None else task.keep_ms / 1000,
            ),
            limit=node.end_offset,
            recordings=_recordings(task),
            notify=lambda text: log.warning("archive", remark=text),
        )
        archiver.begin()
        # Not before: on a busy machine the imports and the head alone would take a minute.
        os.nice(NICENESS)
        while True:
            node.say(asdict(_progress(archiver.step())))
            node.next_line()
    except FencedError as error:
        node.say({"state": "fenced", "reason": str(error)})
    except DamagedSourceError as error:
        node.say({"state": "damaged", "reason": str(error), **_archived_before(error, archiver)})
    except ArchiveError as error:
        node.say({"state": "waiting", "reason": str(error)})


def _archived_before(error: DamagedSourceError, archiver: Archiver | None) -> dict[str, Any]:
    """What the step has archived that found the damage; empty if the archive ends elsewhere."""
    head = None if archiver is None else archiver.head
    if head is None or not head.generations or head.generations[-1].end_offset != error.offset:
        return {}
    return {"archived_offset": error.offset, "generation": head.generations[-1].id}


def _recordings(task: ArchiveTask) -> Path | None:
    """The folder of recordings, if there is one and they can be packed: the log matters more."""
    if task.record_dir is None:
        return None
    try:
        check_packer(task.url)
    except ArchiveError as error:
        log.warning("recordings are not archived", reason=error.reason, hint=error.hint)
        return None
    return Path(task.record_dir)


def _progress(step: ArchiveStep) -> ArchiveProgress:
    return ArchiveProgress(
        generation=step.generation or "",
        # Without a log nothing is archived, and nothing waits.
        archived_offset=step.archived_offset or 0,
        objects=step.objects,
        object_bytes=step.stored_bytes,
        is_more_waiting=step.is_more_waiting,
    )


def main(task_text: str) -> None:
    """Run the archiver of the node that has started this process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # They are sent to all processes of a terminal or a service; this one ends with its node.
        signal.signal(number, signal.SIG_IGN)
    # What any library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    task = structure(json.loads(task_text), ArchiveTask)
    configure_logs(as_json=task.log_as_json)
    node = Node(sys.stdin.buffer, answers)
    node.listen()
    run(task, node)
    sys.stderr.flush()
    # Without waiting for the thread that reads.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
