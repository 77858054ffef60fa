"""Sockets and connections of any protocol."""
