"""Name servers: a real one in a JVM of its own, and trioha's."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.controller import eventually
from tests.interop.java_process import JavaProcess
from tests.interop.rocketmq import name_server_class_path
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT


@contextmanager
def name_server(version: str, *, folder: Path) -> Iterator[str]:
    """A name server of RocketMQ `version`, its files in `folder`: its address, until the block ends."""
    port = free_port()
    process = JavaProcess(
        name="namesrv",
        folder=folder,
        class_path=name_server_class_path(version),
        main_class="org.apache.rocketmq.namesrv.NamesrvStartup",
        settings={"listenPort": port},
    )

    def listens() -> bool:
        assert process.is_running, process.log()
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True

    try:
        process.start()
        eventually("the name server listens", listens, logs=process.log)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()


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
