"""What a broker knows of topics, groups and offsets, in RocketMQ's files.

See docs/protocol/store.md#configuration-files.
"""
