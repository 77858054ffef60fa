"""Replication: RocketMQ's default HA protocol as master and as slave, and group commit on top of it."""
