"""A process that holds stores and measures inside itself: commands in and answers out, one JSON line each."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from tests.processes import DIE_WITH_PARENT, environment_of_ours

ANSWER_WITHIN_S = 60.0
END_WITHIN_S = 10.0


class DriverError(Exception):
    """The rival, or the driver around it, failed; the text has its own words."""


class Driver:
    """One driver process. Answers come in any order; each command has its own future."""

    def __init__(
        self, command: Sequence[str], *, name: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._log_path = folder / f"{name}.log"
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._ids = count(1)
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**environment_of_ours(), **(environment or {})},
                text=True,
                bufsize=1,
            )
        self._reader = threading.Thread(target=self._read_answers, name=f"answers of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the driver process."""
        return self._process.pid

    def submit(self, command: str, **fields: object) -> Future[dict[str, Any]]:
        """Start a command; its answer or DriverError comes through the future."""
        answer: Future[dict[str, Any]] = Future()
        call_id = next(self._ids)
        with self._lock:
            self._answers[call_id] = answer
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"id": call_id, "do": command, **fields}) + "\n")
            self._process.stdin.flush()
        except OSError as gone:
            raise DriverError(f"{self.name} is gone\n{self.log()}") from gone
        return answer

    def call(self, command: str, *, within_s: float = ANSWER_WITHIN_S, **fields: object) -> dict[str, Any]:
        """Carry out a command and wait for its answer."""
        try:
            return self.submit(command, **fields).result(within_s)
        except TimeoutError:
            raise DriverError(
                f"{self.name}: no answer to {command} within {within_s} s\n{self.log()}"
            ) from None

    def pause(self) -> None:
        """Stop the process where it stands, so that its idle threads cost the other rival nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process; stores that are still open end as in a crash."""
        if self._process.poll() is None:
            self.resume()
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.close()
            try:
                self._process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(END_WITHIN_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def log(self) -> str:
        """The last lines that the process wrote to stderr."""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-40:])

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                future = self._answers.pop(answer["id"])
            if "error" in answer:
                future.set_exception(DriverError(f"{self.name}: {answer['error']}\n{self.log()}"))
            else:
                future.set_result(answer["result"])
        with self._lock:
            lost, self._answers = self._answers, {}
        for future in lost.values():
            future.set_exception(DriverError(f"{self.name} ended\n{self.log()}"))
