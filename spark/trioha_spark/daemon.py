"""What Spark's Python workers are forked from: PySpark's daemon, with all that they need imported once.

Spark starts it as `python -m trioha_spark.daemon pyspark.worker` (`spark.python.daemon.module`).
"""

import pyspark.worker  # noqa: F401 (a worker finds it imported)
from pyspark import daemon

import trioha_spark.scan  # noqa: F401 (likewise)

if __name__ == "__main__":
    daemon.manager()
