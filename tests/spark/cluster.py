"""A standalone cluster and a Connect server of Spark of our own on loopback, from the installed PySpark."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from trioha_spark.session import JAVA_OPTIONS

SPARK_HOME: Final = Path(pyspark.__file__).parent
LOOPBACK: Final = "127.0.0.1"
WAIT_S: Final = 300.0
END_S: Final = 10.0
WORKER_MEMORY: Final = "1g"


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """Address (`spark://...`) of a cluster whose workers have one core each; all of it is ended at the end.

    Logs and what workers write go to `folder`. Raises RuntimeError with the log if a part does not come up.
    """
    address = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
    with ExitStack() as started:
        log = started.enter_context(_spark_class(folder, "master", "deploy.master.Master", *address))
        master = _awaited(log, rf"Starting Spark master at (spark://{LOOPBACK}:\d+)")
        own = ("--cores", "1", "--memory", WORKER_MEMORY)
        logs = [
            started.enter_context(
                _spark_class(
                    folder,
                    f"worker-{number}",
                    "deploy.worker.Worker",
                    *(*address, *own, "--work-dir", str(folder / f"work-{number}"), master),
                )
            )
            for number in range(workers)
        ]
        for log in logs:
            _awaited(log, r"(Successfully registered) with master")
        yield master


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Address (`sc://...`) of a Spark Connect server on local[1], which is ended at the end.

    Its Python is PYSPARK_PYTHON of the environment. Its log and what it writes go to `folder`. Raises
    RuntimeError with the log if it does not come up.
    """
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    arguments = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[1]")
    with _spark_class(
        folder, "connect", "deploy.SparkSubmit", *server, *arguments, memory=WORKER_MEMORY
    ) as log:
        port = _awaited(log, r"Spark Connect server started at: \S*:(\d+)")
        yield f"sc://{LOOPBACK}:{port}"


@contextmanager
def _spark_class(
    folder: Path, name: str, main_class: str, *arguments: str, memory: str = "256m"
) -> Iterator[Path]:
    """Run one of Spark's own processes; gives its log."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
    }
    command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.{main_class}", *arguments]
    with log.open("wb") as file:
        # The script becomes Java: this is its process, too.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, cwd=folder
        )
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _awaited(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.05)
    raise RuntimeError(f"{log} does not say {pattern!r}:\n{log.read_text(errors='replace')}")
