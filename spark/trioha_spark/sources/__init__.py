"""Spark data sources: `rocketmq-commitlog` and `trioha-session`.

Spark finds them by itself where the `pyspark_*` modules are on its path; `register` makes them known to one
session. The modules below import NumPy only when something is read: Spark imports them in every session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Make the sources known to `spark`, wherever its Python looks for modules.

    Local Spark starts `python3` of the PATH unless PYSPARK_PYTHON, or spark.pyspark.python, names another
    one: that need not be the one that runs this program, nor have these sources. Where neither is set, the
    Python workers of `spark` are this program's Python from now on.
    """
    from trioha_spark.session import use_this_python  # noqa: PLC0415
    from trioha_spark.sources.commit_log import CommitLogSource  # noqa: PLC0415
    from trioha_spark.sources.session import SessionSource  # noqa: PLC0415

    use_this_python()
    spark.dataSource.register(CommitLogSource)
    spark.dataSource.register(SessionSource)
