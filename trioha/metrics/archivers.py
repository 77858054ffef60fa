"""Metrics of `trioha archive`: a series of each family for each archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, get_args

from attrs import frozen
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trioha.broker_status import ArchiveState
from trioha.metrics.exposition import Exposition
from trioha.metrics.families import add_ms, counter, gauge, label_text
from trioha.metrics.http_get import GetServer

ArchiverState = ArchiveState | Literal["failed"]
"""As of a node's archive; failed: what cannot be tried again, as wrong credentials, has ended it."""
STATES: Final = (*get_args(ArchiveState), "failed")


@frozen(kw_only=True)
class ArchiverFigures:
    """An archiver as of its last step or failure."""

    url: str
    state: ArchiverState = "starting"
    archived_offset: int | None = None
    """None before the first step, and without a log."""
    lag_bytes: int | None = None
    """What was not archived when the last step ended."""
    complete_ms: int | None = None
    """When it was last seen, in ms since 1970, that everything before was archived."""
    objects: int = 0
    object_bytes: int = 0
    failures: int = 0


class ArchiversCollector(Collector):
    """Makes the families of the archivers' figures as of now."""

    def __init__(self, figures: Callable[[], Sequence[ArchiverFigures]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """prometheus-client calls it for each scrape."""
        states = gauge(
            "archiver_state", "1 for the state of the archiver, 0 for the other ones.", "url", "state"
        )
        offset = gauge("archiver_offset_bytes", "Everything before it is archived.", "url")
        lag = gauge("archiver_lag_bytes", "Bytes that were not archived after the last step.", "url")
        complete = gauge(
            "archiver_complete_timestamp_seconds", "All that was stored before it is archived.", "url"
        )
        objects = counter("archiver_objects_total", "Objects of the log that were stored.", "url")
        stored = counter("archiver_object_bytes_total", "Their size.", "url")
        failures = counter("archiver_failures_total", "Attempts to archive that failed.", "url")
        for one in self._figures():
            labels = (label_text(one.url),)
            for state in STATES:
                states.add_metric((*labels, state), state == one.state)
            for family, value in ((offset, one.archived_offset), (lag, one.lag_bytes)):
                if value is not None:
                    family.add_metric(labels, value)
            add_ms(complete, labels, one.complete_ms)
            objects.add_metric(labels, one.objects)
            stored.add_metric(labels, one.object_bytes)
            failures.add_metric(labels, one.failures)
        yield from (states, offset, lag, complete, objects, stored, failures)


def archiver_server(figures: Callable[[], Sequence[ArchiverFigures]]) -> GetServer:
    """A server of the page /metrics."""
    registry = CollectorRegistry()
    registry.register(ArchiversCollector(figures))
    ProcessCollector(registry=registry)
    return GetServer({"/metrics": Exposition(registry).page})
