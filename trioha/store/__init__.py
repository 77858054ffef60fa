"""Bytes on disk: RocketMQ's own files, written and read by one thread."""
