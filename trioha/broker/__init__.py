"""Processors of remoting requests: sends, status."""
