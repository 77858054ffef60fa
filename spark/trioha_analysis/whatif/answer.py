"""The answer of a grid: predictions of the model beside what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from attrs import asdict, evolve, frozen

from trioha_analysis.whatif.figures import Figures
from trioha_analysis.whatif.model import Model, remarks
from trioha_analysis.whatif.scenario import KNOWN_SETTINGS, Point, Scenario


@frozen(eq=False)
class Prediction:
    """A simulated point."""

    point: Point
    figures: Figures
    """Statuses of all repeats; medians of the repeats' percentiles."""


@frozen(eq=False)
class Answer:
    """Predictions for all points of a grid."""

    model: Model
    as_recorded: Figures
    """Predicted with the settings as recorded."""
    predictions: tuple[Prediction, ...]
    repeats: int

    @property
    def error(self) -> Mapping[str, float | None]:
        """Relative error with the settings as recorded; None where nothing was recorded."""
        return {
            **{
                name: _ratio(self.as_recorded.latency_ms, self.model.recorded.latency_ms, name)
                for name in ("p50", "p90", "p99")
            },
            "lagSecondsP99": _ratio(self.as_recorded.lag_seconds, self.model.recorded.lag_seconds, "p99"),
            "putsPerSecond": self.as_recorded.puts_per_s / self.model.recorded.puts_per_s - 1
            if self.model.recorded.puts_per_s
            else None,
        }


def combine_repeats(repeats: Sequence[Figures]) -> Figures:
    """Sums of the counts and medians of the percentiles."""
    statuses: dict[str, int] = {}
    for one in repeats:
        for status, count in one.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return evolve(
        repeats[0],
        puts=sum(one.puts for one in repeats),
        seconds=sum(one.seconds for one in repeats),
        statuses=statuses,
        latency_ms=_medians([one.latency_ms for one in repeats]),
        lag_bytes=_medians([one.lag_bytes for one in repeats]),
        lag_seconds=_medians([one.lag_seconds for one in repeats]),
    )


def _medians(found: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    known = [one for one in found if one is not None]
    if not known:
        return None
    return {name: float(np.median([one[name] for one in known])) for name in known[0]}


def _ratio(predicted: dict[str, float] | None, recorded: dict[str, float] | None, name: str) -> float | None:
    if predicted is None or recorded is None or not recorded[name]:
        return None
    return predicted[name] / recorded[name] - 1


def document(answer: Answer) -> dict[str, Any]:
    """As JSON: `recorded`, `model`, `points`."""
    model = answer.model
    return {
        "session": model.session.path.resolve().name,
        "recorded": {"settings": _settings(model.scenario), **model.recorded.document()},
        "model": {
            "producers": model.producer_model.kind.value,
            "writers": model.producer_model.writers,
            "ratePerSecond": model.producer_model.rate_per_s,
            "repeats": answer.repeats,
            "error": dict(answer.error),
            "remarks": remarks(model, (one.point.scenario for one in answer.predictions)),
            **answer.as_recorded.document(),
        },
        "points": [
            {
                "changes": dict(one.point.changes),
                "settings": _settings(one.point.scenario),
                **one.figures.document(),
            }
            for one in answer.predictions
        ],
    }


_KEYS: Final = {
    "slaves": "slaves",
    **{name: key for key, name in KNOWN_SETTINGS.items()},
    "bandwidth_bytes_per_s": "bandwidthBytesPerSecond",
    "rtt_s": "rttSeconds",
    "writers": "writers",
    "rate_per_s": "ratePerSecond",
    "cores": "cores",
}
"""JSON keys by field of `Scenario`."""


def _settings(scenario: Scenario) -> dict[str, Any]:
    values = asdict(scenario)
    return {key: values[name] for name, key in _KEYS.items()}
