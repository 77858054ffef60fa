"""Name servers: a real one in a JVM of its own, and trioha's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import node_process
from tests.interop.controller import eventually
from tests.interop.java_process import JavaProcess
from tests.interop.rocketmq import name_server_class_path
from tests.ports import free_port


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
    arguments = (argument for key, value in given.items() for argument in ("-p", f"{key}={value}"))
    with node_process.name_server(*arguments, log_path=log_path) as (process, ready):
        yield ready["listen"]
        process.terminate()
        assert process.wait(60) == 0
    assert "Traceback" not in log_path.read_text()
