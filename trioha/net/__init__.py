"""Sockets and connections, whatever protocol is spoken on them."""
