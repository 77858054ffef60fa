"""Apache's rocketmq-proxy in a JVM of its own, unmodified, before brokers: gRPC for clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from tests.interop.java_process import JVM_FLAGS, JavaProcess
from tests.interop.rocketmq import proxy_class_path
from tests.ports import free_port
from tests.waiting import wait_until

START_WITHIN_S = 600.0
"""It takes ten seconds of processor time, for its certificates too."""


@frozen
class Proxy:
    """A proxy that runs."""

    endpoints: str
    """The address of its gRPC port."""
    pid: int


@contextmanager
def grpc_proxy(
    version: str,
    name_servers: str,
    *,
    folder: Path,
    cluster: str,
    flags: Sequence[str] = JVM_FLAGS,
    **settings: object,
) -> Iterator[Proxy]:
    """A proxy in cluster mode with more settings, in a JVM with these flags, until the block ends."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "rmq-proxy.json"
    file.write_text(
        json.dumps(
            {
                "rocketMQClusterName": cluster,
                "namesrvAddr": name_servers,
                "proxyMode": "CLUSTER",
                "grpcServerPort": port,
                "remotingListenPort": free_port(),
                "localServeAddr": "127.0.0.1",
                **settings,
            }
        )
    )
    process = JavaProcess(
        name="proxy",
        folder=folder,
        class_path=proxy_class_path(version),
        main_class="org.apache.rocketmq.proxy.ProxyStartup",
        settings={},
        flags=flags,
        arguments=("-pc", str(file)),
    )

    def listens() -> bool:
        assert process.is_running, process.log()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            return False

    try:
        process.start()
        wait_until(listens, "the proxy listens", within_s=START_WITHIN_S)
        yield Proxy(f"127.0.0.1:{port}", process.pid)
    finally:
        process.kill()
