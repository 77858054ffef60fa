"""A Spark session with little output and memory.

Spark, its Java and its Python workers write to stderr before they read any setting. They are started with an
unnamed temporary file as stderr, whose end is shown if Spark does not start.

The private attributes of SparkContext here have no public counterpart in PySpark 4.3: `SparkSession.active()`
does not find a context without a session, and a context that is stopped leaves its Java running, for the next
one to use.
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
"""Options for a fast start: Java only moves rows, the work is done in Python (measured: half the time)."""
WITHOUT_CODEGEN: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
WORKER_ENVIRONMENT: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""glibc settings by which Python workers reuse the memory of large arrays instead of returning it to the
system (measured: a quarter of their time)."""
END_TIMEOUT_S: Final = 10.0
SHUFFLE_PARTITIONS_MAX: Final = 8
"""A shuffle has one small row for each connection and run of ranges, and a partition costs more than its
rows: there are as many as cores, up to this."""


class SparkError(TriohaError):
    """Spark did not start."""


@contextmanager
def spark_session(master: str = LOCAL, *, driver_memory: str = "1g") -> Iterator[SparkSession]:
    """The active Spark session of this process (a notebook's), which keeps running; else a new one on
    `master` (`local[N]`, `spark://HOST:PORT`), stopped at the end.

    An existing Java process (of a stopped session, or spark-submit's) is used and keeps running.

    Local Spark, and one with a master on the loopback address, listens on loopback only, without a user
    interface. Workers of a cluster run the Python of PYSPARK_PYTHON, else the one at the path of this one. In
    a program run by spark-submit, master and memory are those of spark-submit.

    Raises JavaError without a suitable Java, SparkError if Spark does not start. During the start this
    process's stderr is redirected, too.
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
        # Spark would use the unsuitable one of JAVA_HOME.
        environment["JAVA_HOME"] = str(java.resolve().parent.parent)
    builder = (
        SparkSession.builder.appName("trioha")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
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
                partitions = min(SHUFFLE_PARTITIONS_MAX, spark.sparkContext.defaultParallelism)
                spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
                yield spark
            finally:
                spark.stop()
        finally:
            if gateway is None and not is_submitted:
                _end_java()


@contextmanager
def without_codegen(spark: SparkSession) -> Iterator[None]:
    """Let a session make no Java code for its queries.

    The rows of a replay are few and have hundreds of columns: their code takes longer to compile than they
    take without it (measured: a fifth of a short replay). Nothing else may use the session meanwhile: queries
    of Spark's catalog fail without their code.
    """
    before = {name: spark.conf.get(name) for name in WITHOUT_CODEGEN}
    for name, value in WITHOUT_CODEGEN.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            spark.conf.set(name, str(kept))


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of a classic session of Spark; None of one of Spark Connect, which has none."""
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    return context


def use_this_python(spark: SparkSession) -> None:
    """Let local Spark run its workers with this program's Python, unless another one is configured.

    Without PYSPARK_PYTHON or spark.pyspark.python Spark starts `python3` of the PATH, which may lack this
    program's packages. Clusters and Spark Connect are not changed.
    """
    context = context_of(spark)
    if context is None or not str(context.master).startswith("local"):
        return
    if "PYSPARK_PYTHON" not in os.environ and context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = sys.executable


@contextmanager
def this_python(spark: SparkSession) -> Iterator[None]:
    """`use_this_python` for DataFrames that are made inside."""
    context = context_of(spark)
    if context is None:
        yield
        return
    before = context.pythonExec
    use_this_python(spark)
    try:
        yield
    finally:
        context.pythonExec = before


def _end_java() -> None:
    """End Spark's Java process, which would otherwise outlive this one for a while."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    gateway.shutdown()
    # Set by PySpark on a gateway that it has launched; the process ends when its stdin closes.
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
    """First line of the Java exception, or of the error with the last line that Spark logged."""
    java_exception = getattr(error, "java_exception", None)
    if java_exception is not None:
        return str(java_exception.getMessage() or java_exception.toString()).splitlines()[0]
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    message = (str(error) or type(error).__name__).splitlines()[0]
    return f"{message} ({lines[-1]})" if lines else message
