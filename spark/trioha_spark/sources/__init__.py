"""Spark data sources: `rocketmq-commitlog` and `trioha-session`.

Spark finds them if the `pyspark_*` modules are on its path; `register` adds them to one session. The modules
import NumPy only when they read, because Spark imports them in every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the sources in `spark`, and let local Spark run its workers with this program's Python.

    See `trioha_spark.session.use_this_python`: another Python may not have these sources.
    """
    from trioha_spark.session import use_this_python  # noqa: PLC0415
    from trioha_spark.sources.commit_log import CommitLogSource  # noqa: PLC0415
    from trioha_spark.sources.session import SessionSource  # noqa: PLC0415

    use_this_python(spark)
    spark.dataSource.register(CommitLogSource)
    spark.dataSource.register(SessionSource)
