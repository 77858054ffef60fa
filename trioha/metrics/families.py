"""Families of metrics: names, units, and samples that may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

PREFIX: Final = "trioha_"
LABEL_CHARS_MAX: Final = 255
REST: Final = "(other)"
"""Topic and group of what has no time series of its own; no topic may have such a name."""

_UNITS: Final = frozenset(("bytes", "seconds"))


def gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    """A family of gauges; its unit is the last word of its name."""
    return GaugeMetricFamily(PREFIX + name, documentation, labels=labels, unit=_unit(name))


def counter(name: str, documentation: str, *labels: str) -> CounterMetricFamily:
    """A family of counters; `name` ends with _total."""
    assert name.endswith("_total"), name
    return CounterMetricFamily(
        PREFIX + name, documentation, labels=labels, unit=_unit(name.removesuffix("_total"))
    )


def _unit(name: str) -> str:
    last = name.rpartition("_")[2]
    return last if last in _UNITS else ""


def label_text(text: str) -> str:
    """A label's value of any text of a peer: UTF-8, with an end."""
    return text[:LABEL_CHARS_MAX].encode("utf-8", "backslashreplace").decode()


def value_of(family: GaugeMetricFamily | CounterMetricFamily, value: float | None) -> Metric:
    """`family` with one sample; with none for None."""
    if value is not None:
        family.add_metric((), value)
    return family


def counts_of(family: CounterMetricFamily, known: Iterable[str], counts: Mapping[str, int]) -> Metric:
    """`family` with a sample for each of `known`, and for others that were counted."""
    for name in dict.fromkeys((*known, *counts)):
        family.add_metric((name,), counts.get(name, 0))
    return family


def add_ms(family: GaugeMetricFamily, labels: tuple[str, ...], value_ms: int | None) -> None:
    """Add a sample of milliseconds to a family of seconds; none for None."""
    if value_ms is not None:
        family.add_metric(labels, value_ms / 1000)
