"""RocketMQ commit logs as Arrow tables: found, walked and decoded by NumPy, many records at a time."""
