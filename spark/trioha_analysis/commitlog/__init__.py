"""RocketMQ commit logs as Arrow tables, decoded by NumPy, many records at a time."""
