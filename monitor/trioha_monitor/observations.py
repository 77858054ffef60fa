"""What the monitor observes beside the answers of nodes (`trioha_monitor.cluster.Sample`). Pure data.

Observations are all that the views of a live source are made of, apart from topics and groups: the same ones
in the same order make the same views (`trioha_monitor.watched`). A recording has them.
"""

from __future__ import annotations

from attrs import frozen

from trioha_monitor.cluster import Sample


@frozen
class Listing:
    """The result of one request to a name server."""

    name_server: str
    """Its address, `host:port`."""
    at_ms: int
    """When, on the views' axis (`trioha_monitor.view`)."""
    brokers: tuple[str, ...] | None = None
    """The brokers that it lists; None if it did not answer."""
    invalid: int = 0
    """Brokers that it lists with an address that cannot be used."""
    fault: str = ""
    """Why there is no answer; empty exactly if there is one."""


@frozen
class ClockStep:
    """The wall clock of the monitor's machine was set."""

    at_ms: int
    by_ms: int
    """Forward, or back if negative."""


@frozen
class Gap:
    """Observations that a recording lacks."""

    at_ms: int
    """They were made before it."""
    count: int
    """How many; 0 if that is not known."""
    reason: str


Observation = Sample | Listing | ClockStep | Gap
