"""What a broker knows of topics, groups and offsets, in RocketMQ's files (spec store 6)."""
