"""Apache's rocketmq-proxy in a JVM of its own, unmodified, before brokers: gRPC for clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop.controller import eventually
from tests.interop.java_process import JVM_FLAGS, JavaProcess
from tests.interop.rocketmq import proxy_class_path
from tests.ports import free_port


@contextmanager
def grpc_proxy(version: str, name_servers: str, *, folder: Path, cluster: str) -> Iterator[str]:
    """A proxy in cluster mode: the address of its gRPC port, until the block ends."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "rmq-proxy.json"
    settings.write_text(
        json.dumps(
            {
                "rocketMQClusterName": cluster,
                "namesrvAddr": name_servers,
                "proxyMode": "CLUSTER",
                "grpcServerPort": port,
                "remotingListenPort": free_port(),
                "localServeAddr": "127.0.0.1",
                # A busy machine takes its time.
                "grpcClientConsumerMinLongPollingTimeoutMillis": 1000,
            }
        )
    )
    process = JavaProcess(
        name="proxy",
        folder=folder,
        class_path=proxy_class_path(version),
        main_class="org.apache.rocketmq.proxy.ProxyStartup",
        settings={},
        flags=JVM_FLAGS,
        arguments=("-pc", str(settings)),
    )

    def listens() -> bool:
        assert process.is_running, process.log()
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True

    try:
        process.start()
        eventually("the proxy listens", listens, logs=process.log)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
