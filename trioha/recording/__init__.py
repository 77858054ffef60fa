"""Recorded sessions of a node: event types, recorder, format, and what a session says of itself.

`trioha_sessions` reads the records.
"""
