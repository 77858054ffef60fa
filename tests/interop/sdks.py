"""Apache's SDKs of gRPC, each in an environment of its own: their dependencies are not those of the tests.

Environments are made once per machine, as the jars of `tests.interop.rocketmq`. Each SDK has a driver, a
process with clients of it: `sdk/python_sdk.py` says what drivers do.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.interop.rocketmq import ToolchainError, java_sdk_jars
from tests.processes import DIE_WITH_PARENT, environment_of_ours
from trioha.cli.rocketmq_jars import cache_folder, java_tool
from trioha.remoting.signature import Credentials

PYTHON_SDK: Final = "rocketmq-python-client==5.1.2"
NODE_SDK: Final = "rocketmq-client-nodejs@1.0.8"
_DRIVERS: Final = Path(__file__).parent / "sdk"
_INSTALL_TIMEOUT_S: Final = 600.0


class SdkError(Exception):
    """The SDK failed; the text is its traceback."""


def _installed(name: str, *commands: Callable[[Path], list[str]]) -> Path:
    """The folder of an environment, which commands make of an empty one. Raises ToolchainError."""
    folder = cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "installed"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists():
            for command in commands:
                words = command(folder)
                done = subprocess.run(
                    words, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL_TIMEOUT_S
                )
                if done.returncode:
                    raise ToolchainError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
            stamp.touch()
    return folder


def _python_driver() -> tuple[list[str], dict[str, str]]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = _installed(
        f"{PYTHON_SDK.replace('==', '-')}-{version}",
        lambda folder: [sys.executable, "-m", "venv", "--clear", str(folder / "venv")],
        lambda folder: [str(folder / "venv/bin/python"), "-m", "pip", "install", "-q", PYTHON_SDK],
    )
    return [str(folder / "venv/bin/python"), str(_DRIVERS / "python_sdk.py")], {}


def _java_driver() -> tuple[list[str], dict[str, str]]:
    return [java_tool("java"), "-Xmx256m", "-cp", java_sdk_jars(), str(_DRIVERS / "JavaSdk.java")], {}


def _node_driver() -> tuple[list[str], dict[str, str]]:
    folder = _installed(
        NODE_SDK.replace("@", "-"),
        lambda _folder: ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".", NODE_SDK],
    )
    return ["node", str(_DRIVERS / "node_sdk.js")], {"NODE_PATH": str(folder / "node_modules")}


DRIVERS: Final = {"python": _python_driver, "java": _java_driver, "node": _node_driver}
"""How the driver of an SDK is started: the command, and what its environment has beside. They raise
ToolchainError."""


class Sdk:
    """A process with clients of an SDK; each is named."""

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
def opened_sdk(language: str, endpoints: str, *, log: Path, user: Credentials | None = None) -> Iterator[Sdk]:
    """Clients of a proxy, until the block ends. The driver for Python signs as `user`."""
    command, environment = DRIVERS[language]()
    account = () if user is None else (user.access_key, user.secret_key)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, *command, endpoints, *account],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=log.parent,
            env={**environment_of_ours(), **environment, "HOME": str(log.parent)},
        )
    try:
        yield Sdk(process, log)
    finally:
        process.kill()
        process.wait(60)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
