"""Apache's SDK of gRPC for Python in an environment of its own: its dependencies are not those of the tests.

Made once per machine, as the jars of `tests.interop.rocketmq`.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.rocketmq import ToolchainError
from tests.processes import DIE_WITH_PARENT, environment_of_ours
from trioha.cli.rocketmq_jars import cache_folder

PYTHON_SDK = "rocketmq-python-client==5.1.2"
_DRIVER = Path(__file__).parent / "sdk" / "python_sdk.py"
_PIP_TIMEOUT_S = 600.0


class SdkError(Exception):
    """The SDK failed; the text is its traceback."""


def sdk_python() -> Path:
    """The Python of the environment that has the SDK. Raises ToolchainError if it cannot be made."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"{PYTHON_SDK.replace('==', '-')}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    python, stamp = folder / "venv/bin/python", folder / "installed"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            for command in (
                [sys.executable, "-m", "venv", "--clear", str(folder / "venv")],
                [str(python), "-m", "pip", "install", "-q", PYTHON_SDK],
            ):
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_PIP_TIMEOUT_S
                )
                if done.returncode:
                    raise ToolchainError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
            stamp.touch()
    return python


class PythonSdk:
    """A process with clients of the SDK; each is named."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def __call__(self, do: str, **options: Any) -> Any:
        """Do one thing (`sdk/python_sdk.py::Clients`); its result. Raises SdkError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"do": do, **options}) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SdkError(f"the SDK ended: {self._log.read_text()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise SdkError(f"{do}: {answer['error']}\n{self._log.read_text()[-2000:]}")
        return answer["result"]


@contextmanager
def python_sdk(endpoints: str, *, log: Path) -> Iterator[PythonSdk]:
    """Clients of a proxy, until the block ends."""
    python = sdk_python()
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, str(python), str(_DRIVER), endpoints],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=log.parent,
            env={**environment_of_ours(), "HOME": str(log.parent)},
        )
    try:
        yield PythonSdk(process, log)
    finally:
        process.kill()
        process.wait(60)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
