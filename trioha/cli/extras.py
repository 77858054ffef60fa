"""Which extra a command needs, said so that it can be installed: no package index has trioha."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """What to run, in a checkout of trioha, for the packages of an extra."""
    return f"in a checkout of trioha run: pip install '.[{extra}]'"
