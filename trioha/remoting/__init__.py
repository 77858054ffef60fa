"""RocketMQ's remoting protocol: frames, commands, a server and a client."""
