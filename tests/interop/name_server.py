"""Name servers: a real one in a JVM of its own, and trioha's."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.rivals.machine import cpu_s
from tests.interop.rocketmq import home_flags, java_tool, name_server_class_path
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT, environment_of_ours

START_CPU_S = 30.0
"""CPU time in which a name server starts, in seconds: ten times what it takes. A clock on the wall would show
how busy the machine is; one that hangs without working is ended by pytest's timeout."""
LOG = "namesrv.log"
_LOGBACK = '<configuration><root level="OFF"/></configuration>'


@contextmanager
def name_server(version: str, *, folder: Path) -> Iterator[str]:
    """A name server of RocketMQ `version`, its files in `folder`: its address, until the block ends."""
    jars = name_server_class_path(version)
    home = folder / "home"
    (home / "conf").mkdir(parents=True)
    # 4.9.7 does not start without it.
    (home / "conf" / "logback_namesrv.xml").write_text(_LOGBACK)
    port = free_port()
    process = _start(jars, home, folder, port)
    try:
        _wait_until_it_listens(port, process, folder / LOG)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _start(jars: str, home: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    config = folder / "namesrv.conf"
    config.write_text(f"listenPort={port}\n")
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            [
                *DIE_WITH_PARENT, java_tool("java"),
                "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                "--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
                *home_flags(home),
                "-cp", jars, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config),
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment_of_ours(),
        )  # fmt: skip


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    while True:
        # Looked at first: one that has ended may have left its port to another process.
        if process.poll() is not None or cpu_s(process.pid) > START_CPU_S:
            said = log_path.read_text(errors="replace")[-4000:]
            raise AssertionError(f"the name server does not listen on {port}:\n{said}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


@contextmanager
def trioha_name_server(folder: Path, **settings: Any) -> Iterator[str]:
    """`trioha namesrv` on a free port: its address, until the block ends, which it must do cleanly."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "listenPort": 0,
        "kvConfigPath": folder / "kvConfig.json",
        "bindAddress": "127.0.0.1",
        **settings,
    }
    log_path = folder / "namesrv.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                *DIE_WITH_PARENT, sys.executable, "-m", "trioha", "namesrv",
                *(argument for key, value in given.items() for argument in ("-p", f"{key}={value}")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            ready = dict(pair.split("=", 1) for pair in process.stdout.readline().split()[1:])
            yield ready["listen"]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.kill()
    assert "Traceback" not in log_path.read_text()
