"""Where Spark finds the data source `rocketmq-commitlog`: it looks into all modules `pyspark_*`."""

from trioha_spark.sources.commit_log import CommitLogSource as DefaultSource

__all__ = ["DefaultSource"]
