"""Recorded sessions of a node: event types, recorder, reader, state and figures."""
