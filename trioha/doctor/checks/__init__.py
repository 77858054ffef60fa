"""The checks, one function each: importing this package registers them in `trioha.doctor.findings.CHECKS`."""

from __future__ import annotations

from typing import Final

from trioha.doctor.checks import (
    addresses,
    archives,
    clocks,
    controllers,
    identity,
    logs,
    metadata,
    pending,
    settings,
    sync,
    users,
)

AREAS: Final = {
    identity.__name__.rpartition(".")[2]: "Who is who",
    addresses.__name__.rpartition(".")[2]: "Addresses and ports",
    sync.__name__.rpartition(".")[2]: "Copies of a put",
    logs.__name__.rpartition(".")[2]: "Logs",
    settings.__name__.rpartition(".")[2]: "Settings",
    metadata.__name__.rpartition(".")[2]: "Topics, groups and offsets",
    pending.__name__.rpartition(".")[2]: "Timers and popped messages",
    users.__name__.rpartition(".")[2]: "Users and access control",
    archives.__name__.rpartition(".")[2]: "Archives",
    controllers.__name__.rpartition(".")[2]: "Controller mode",
    clocks.__name__.rpartition(".")[2]: "Clocks",
}
"""Headings of the modules in the documentation, in their order there."""
