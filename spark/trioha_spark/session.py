"""A Spark session that keeps quiet and small.

Spark, its Java and its Python workers talk on stderr, from before any setting of theirs is read. They are
started with a stderr of their own, a file without a name, of which the end is shown if Spark does not start.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from trioha.errors import TriohaError
from trioha_spark.java import require_java

LOCAL: Final = "local[*]"
LOOPBACK: Final = "127.0.0.1"
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java only moves rows here, the work is done in Python: a quick start counts (measured: half the time)."""
WORKER_ENVIRONMENT: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Python workers make arrays of megabytes by the thousand: they keep the memory of one for the next, rather
than give it back and take it anew, page by page (glibc's settings; measured: a quarter of their time)."""
END_TIMEOUT_S: Final = 10.0
SHUFFLE_PARTITIONS: Final = 8
"""What is shuffled is one small row for each connection and range of records."""


class SparkError(TriohaError):
    """Spark could not be started, or is of no use."""


@contextmanager
def spark_session(master: str = LOCAL, *, driver_memory: str = "1g") -> Iterator[SparkSession]:
    """A Spark session: the one that runs in this process (a notebook's), which is left as it is; else one of
    our own on `master` (`local[N]`, `spark://HOST:PORT`), stopped at the end.

    A Java process that was there before (of a session that was stopped, or spark-submit's) is used and left.

    Local Spark, and one whose master is on the loopback address, listens there only, and no user interface is
    started. Workers of a cluster run the Python that PYSPARK_PYTHON names, or one at the path of this one. Of
    a program that spark-submit runs, master and memory are what was said to spark-submit.

    Raises JavaError if there is no Java for it, SparkError if it does not start. While it starts (and only
    then) this process's stderr is Spark's too.
    """
    if SparkContext._active_spark_context is not None:
        yield SparkSession.builder.getOrCreate()
        return
    gateway = SparkContext._gateway
    java = require_java()
    is_local, is_submitted = master.startswith("local"), "PYSPARK_GATEWAY_PORT" in os.environ
    environment = {"PYSPARK_DRIVER_PYTHON": sys.executable}
    if (is_local and not is_submitted) or "PYSPARK_PYTHON" not in os.environ:
        environment["PYSPARK_PYTHON"] = sys.executable
    java_home = os.environ.get("JAVA_HOME")
    if java_home and java != Path(java_home) / "bin" / "java":
        # Spark would take the one of JAVA_HOME, which it cannot use.
        environment["JAVA_HOME"] = str(java.resolve().parent.parent)
    builder = (
        SparkSession.builder.appName("trioha")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(SHUFFLE_PARTITIONS))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.daemon.module", "trioha_spark.daemon")
    )
    for name, value in WORKER_ENVIRONMENT.items():
        builder = builder.config(f"spark.executorEnv.{name}", value)
    if not is_submitted:
        builder = (
            builder.master(master)
            .config("spark.driver.memory", driver_memory)
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
            .config("spark.executor.extraJavaOptions", JAVA_OPTIONS)
        )
        if is_local or master.startswith(f"spark://{LOOPBACK}:"):
            environment["SPARK_LOCAL_IP"] = LOOPBACK
            builder = builder.config("spark.driver.host", LOOPBACK).config(
                "spark.driver.bindAddress", LOOPBACK
            )
    with tempfile.TemporaryFile() as log:
        try:
            with _environment(environment), _stderr_to(log):
                try:
                    spark = builder.getOrCreate()
                except Exception as error:
                    raise SparkError(f"Spark on {master} did not start: {_reason(error, log)}") from error
            try:
                yield spark
            finally:
                spark.stop()
        finally:
            if gateway is None and not is_submitted:
                _end_java()


def use_this_python() -> None:
    """Let local Spark start the Python that runs this program for its workers, unless another one is named.

    Spark starts `python3` of the PATH unless PYSPARK_PYTHON, or spark.pyspark.python, says otherwise: that
    need not have what this program has. On a cluster, and of Spark Connect, nothing is changed.
    """
    context = SparkContext._active_spark_context
    if context is None or not str(context.master).startswith("local"):
        return
    if "PYSPARK_PYTHON" not in os.environ and context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = sys.executable


@contextmanager
def this_python() -> Iterator[None]:
    """`use_this_python` for what is begun inside."""
    context = SparkContext._active_spark_context
    before = None if context is None else context.pythonExec
    use_this_python()
    try:
        yield
    finally:
        if context is not None and before is not None:
            context.pythonExec = before


def _end_java() -> None:
    """End the Java process that Spark ran in. It would end by itself, but only some time after this one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    gateway.shutdown()
    # Set by PySpark on a gateway that it has launched: the process ends when its stdin does.
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if process is None or process.stdin is None:
        return
    process.stdin.close()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _stderr_to(log: IO[bytes]) -> Iterator[None]:
    sys.stderr.flush()
    stderr = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)


def _reason(error: Exception, log: IO[bytes]) -> str:
    """The first line that says something: of the Java exception, or the last one that Spark logged."""
    java_exception = getattr(error, "java_exception", None)
    if java_exception is not None:
        return str(java_exception.getMessage() or java_exception.toString()).splitlines()[0]
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    said = (str(error) or type(error).__name__).splitlines()[0]
    return f"{said} ({lines[-1]})" if lines else said
