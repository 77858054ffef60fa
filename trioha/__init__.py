"""trioha: a RocketMQ-compatible replica on trio."""

__version__ = "0.1.0"
