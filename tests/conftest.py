"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# Deadlines of single examples measure the machine's load, not the code.
settings.register_profile("trioha", deadline=None)
settings.load_profile("trioha")
