"""The JVM of RocketMQ's clients and slaves (`java/BenchDriver.java`): a command in, its answer out."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.systems import JVM_FLAGS, BenchmarkError, prepared_java
from tests.interop.java_process import java_command
from tests.interop.rocketmq import class_path, java_tool
from tests.processes import environment_of_ours

SOURCES: Final = Path(__file__).with_name("java")
ANSWER_WITHIN_S: Final = 700.0
LOG_SHOWN: Final = 4000


class JavaDriver:
    """A JVM with the flags of a server. It lives through all rounds, so that its code is compiled early."""

    def __init__(self, folder: Path, *, version: str) -> None:
        """Compile and start it. Raises BenchmarkError."""
        classes = folder / "classes"
        classes.mkdir(parents=True)
        base = class_path(version)
        compiled = subprocess.run(
            [java_tool("javac"), "-proc:none", "-encoding", "UTF-8", "-cp", base, "-d", classes,
             *sorted(SOURCES.glob("*.java"))],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if compiled.returncode:
            raise BenchmarkError(f"javac: {compiled.stdout}{compiled.stderr}")
        home, logback = prepared_java(folder)
        path = f"{classes}{os.pathsep}{base}"
        command = java_command("interop.BenchDriver", path, home=home, logback=logback, flags=JVM_FLAGS)
        self._log_path = folder / "driver.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment_of_ours(),
                text=True,
                bufsize=1,
            )

    @property
    def pid(self) -> int:
        """Of the JVM."""
        return self._process.pid

    def call(self, command: str, **fields: object) -> dict[str, Any]:
        """Carry out a command, and wait for its answer. Raises BenchmarkError with the driver's own words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        deadline = threading.Timer(ANSWER_WITHIN_S, self._process.kill)
        deadline.start()
        try:
            self._process.stdin.write(json.dumps({"do": command, **fields}) + "\n")
            line = self._process.stdout.readline()
        finally:
            deadline.cancel()
        answer = json.loads(line) if line else {"error": "the JVM has ended"}
        if "error" in answer:
            log = self._log_path.read_text(errors="replace")[-LOG_SHOWN:]
            raise BenchmarkError(f"{command}: {answer['error']}\n{log}")
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
