"""What a scrape gives: families and samples, read back by the client library's own parsers."""

from __future__ import annotations

import http.client
import re
import sys
from pathlib import Path

from attrs import frozen
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from tests.node.client import endpoint

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
DOCS = Path(__file__).parents[2] / "docs"
_ROW = re.compile(r"\| `([a-z0-9_]+)` \| (\w+) \|([^|]*)\|")
_SUFFIXES = {"counter": "_total", "info": "_info"}


@frozen
class Family:
    """A family of metrics, by the name that queries use."""

    kind: str
    labels: frozenset[str]
    """`le` of histograms is not in it."""


def documented() -> dict[str, Family]:
    """The families that docs/metrics.md lists, by name."""
    rows = _ROW.findall((DOCS / "metrics.md").read_text())
    return {
        name: Family(kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in rows
        if name.startswith(("trioha_", "rocketmq_", "process_"))
    }


def documented_of_nodes() -> dict[str, Family]:
    """Those of them that nodes serve, on Linux with those of the process."""
    return {
        name: family
        for name, family in documented().items()
        if not name.startswith("trioha_archiver_")
        and (not name.startswith("process_") or sys.platform == "linux")
    }


def query_name(family: Metric) -> str:
    """The name that queries use: that of counters ends with _total."""
    return family.name + _SUFFIXES.get(family.type, "")


def families_of(metrics: list[Metric]) -> dict[str, Family]:
    """Kinds and labels of what a node serves, by name. The labels are those of its samples."""
    return {
        query_name(one): Family(
            one.type, frozenset(label for sample in one.samples for label in sample.labels) - {"le"}
        )
        for one in metrics
    }


def scrape(
    address: str, *, accept: str = OPENMETRICS, method: str = "GET", path: str = "/metrics"
) -> tuple[int, str, str]:
    """Status, content type and body that the HTTP port answers."""
    host, port = endpoint(address)
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request(method, path, headers={"Accept": accept})
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        connection.close()


def parsed(text: str, *, is_openmetrics: bool = True) -> list[Metric]:
    """All families of a text. Raises ValueError for a text that is not of its format."""
    return list((parse_openmetrics if is_openmetrics else parse_plain)(text))


def values_of(metrics: list[Metric]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and labels of the series. A series that is there twice fails."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in metrics:
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in found, f"twice: {series}"
            found[series] = sample.value
    return found


def value(metrics: list[Metric], name: str, **labels: str) -> float:
    """The value of one series."""
    return values_of(metrics)[name, frozenset(labels.items())]
