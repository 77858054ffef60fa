"""PySpark's daemon, from which Python workers are forked, with their modules already imported.

Spark starts it as `python -m trioha_spark.daemon pyspark.worker` (`spark.python.daemon.module`).
"""

import pyspark.worker  # noqa: F401 (a worker finds it imported)
from pyspark import daemon

import trioha_spark.scan  # noqa: F401 (likewise)

if __name__ == "__main__":
    daemon.manager()
