"""The name server: which broker has which topics, and where it listens.

See docs/protocol/remoting.md#name-server.
"""
