"""Replay of recorded sessions on Spark."""

from trioha_spark.java import JavaError, require_java

__all__ = ["JavaError", "require_java"]
