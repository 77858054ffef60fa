"""A broker's side of RocketMQ's controller mode: its id, its registration, its role."""
