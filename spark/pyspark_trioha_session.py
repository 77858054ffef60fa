"""Where Spark finds the data source `trioha-session`: it looks into all modules `pyspark_*`."""

from trioha_spark.sources.session import SessionSource as DefaultSource

__all__ = ["DefaultSource"]
