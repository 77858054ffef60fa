"""PySpark's daemon, from which Python workers are forked, with their modules already imported.

Spark starts it as `python -m trioha_spark.daemon pyspark.worker` (`spark.python.daemon.module`).
"""

import pyspark.worker  # noqa: F401 (a worker finds it imported)
from pyspark import daemon

import trioha_spark.results  # noqa: F401 (likewise)
from trioha_analysis.arrow_values import arrow_type
from trioha_analysis.link_work import Compared, ConnectionFrames
from trioha_analysis.parts import Run
from trioha_spark.rows import LinksRow, LinkWorkRow, PartRow, ResultRow

if __name__ == "__main__":
    for of in (Run, PartRow, ResultRow, ConnectionFrames, LinkWorkRow, Compared, LinksRow):
        # Workers find the types made.
        arrow_type(of)
    daemon.manager()
