"""Replication in controller mode: RocketMQ's AutoSwitch HA protocol, in which the master can change."""
