"""Expressions of the dashboard and of the alert rules in configs/grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from tests.metrics.promql import Expression, read

CONFIGS = Path(__file__).parents[2] / "configs"
RULES = CONFIGS / "grafana" / "trioha-alerts.yml"
DASHBOARD = CONFIGS / "grafana" / "trioha-dashboard.json"
OF_PROMETHEUS = frozenset(("job", "instance"))
"""Labels that Prometheus itself adds to each series."""


@frozen
class Use:
    """An expression, and the labels that its texts show."""

    place: str
    text: str
    expression: Expression
    shown_labels: frozenset[str]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def uses() -> Iterator[Use]:
    """All expressions of rules and dashboard."""
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        shown = frozenset(re.findall(r"\$labels\.(\w+)", texts))
        yield Use(f"alert {rule['alert']}", rule["expr"], read(rule["expr"]), shown)
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            shown = frozenset(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            yield Use(f"panel {panel['title']}", target["expr"], read(target["expr"]), shown)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Use(
                f"variable {variable['name']}",
                variable["definition"],
                read(variable["definition"]),
                frozenset(),
            )


def family_name(series: str, kinds: dict[str, str]) -> str:
    """The family of a series: that of a histogram's parts has no _bucket, _sum and _count."""
    for suffix in ("_bucket", "_sum", "_count"):
        if kinds.get(series.removesuffix(suffix)) == "histogram":
            return series.removesuffix(suffix)
    return series
