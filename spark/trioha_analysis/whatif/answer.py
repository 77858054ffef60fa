"""The answer of a grid: the recording, what the model says of it, how far that is off, then predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import asdict

from trioha_analysis.whatif.model import Answer, Prediction, remarks
from trioha_analysis.whatif.scenario import KNOWN_SETTINGS, Scenario

ERROR_MAX: Final = 0.25
"""Relative error of the model on the recording itself beyond which it predicts nothing."""


def error_of(answer: Answer) -> dict[str, float | None]:
    """Relative error of the model with the settings as recorded; None where nothing was recorded."""
    predicted, recorded = answer.as_recorded.figures, answer.model.recorded
    return {
        **{name: _ratio(predicted.latency_ms, recorded.latency_ms, name) for name in ("p50", "p90", "p99")},
        "lagSecondsP50": _ratio(predicted.lag_seconds, recorded.lag_seconds, "p50"),
        "lagSecondsP99": _ratio(predicted.lag_seconds, recorded.lag_seconds, "p99"),
        "putsPerSecond": predicted.puts_per_s / recorded.puts_per_s - 1 if recorded.puts_per_s else None,
    }


def _ratio(
    predicted: Mapping[str, float] | None, recorded: Mapping[str, float] | None, name: str
) -> float | None:
    if predicted is None or recorded is None or not recorded[name]:
        return None
    return predicted[name] / recorded[name] - 1


def doubt_of(answer: Answer) -> str | None:
    """Why the model is not to be believed, in a sentence; None if it is within `ERROR_MAX`.

    p50 and p99 of put latency count, or, where no put waited, those of the time to the worst slave's ack.
    """
    error = error_of(answer)
    what, names = "put latency", ("p50", "p99")
    if error["p50"] is None:
        what, names = "time to an ack", ("lagSecondsP50", "lagSecondsP99")
    off = {name: error[name] for name in names}
    if None in off.values():
        return "the recording does not show how far the model is off: no put waited, no slave acknowledged"
    if all(abs(value) <= ERROR_MAX for value in off.values() if value is not None):
        return None
    found = ", ".join(
        f"{name[-3:].lower()} {percent(value)}" for name, value in off.items() if value is not None
    )
    return f"the model is off by {found} of {what} on the recording itself, beyond {ERROR_MAX:.0%}"


def percent(error: float) -> str:
    """A relative error, with its sign."""
    return f"{round(100 * error) + 0:+,d}%"


def document(answer: Answer, *, force: bool = False) -> dict[str, Any]:
    """As JSON: `doubt`, `recorded`, `model`, `points`; no points if there is a doubt, unless `force`."""
    model, doubt = answer.model, doubt_of(answer)
    shown = answer.predictions if doubt is None or force else ()
    return {
        "session": model.session.path.resolve().name,
        "doubt": doubt,
        "recorded": {"settings": _settings(model.scenario), **model.recorded.document()},
        "model": {
            "producers": "closed" if model.writers else "open",
            "writers": model.writers,
            "ratePerSecond": model.recorded.puts_per_s,
            "error": error_of(answer),
            "remarks": remarks(model, (one.point.scenario for one in answer.predictions)),
            **_prediction(answer.as_recorded),
        },
        "points": [
            {
                "changes": dict(one.point.changes),
                "settings": _settings(one.point.scenario),
                **_prediction(one),
            }
            for one in shown
        ],
    }


def _prediction(found: Prediction) -> dict[str, Any]:
    return {**found.figures.document(), "latencyRangeMs": found.latency_range_ms}


def rows_of(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and figures of each row that a table or a plot shows: the recording and the model first."""
    return [
        ("recorded", document["recorded"]),
        ("model, as recorded", document["model"]),
        *(
            (" ".join(f"{key}={value}" for key, value in one["changes"].items()), one)
            for one in document["points"]
        ),
    ]


_KEYS: Final = {
    "slaves": "slaves",
    **{name: key for key, name in KNOWN_SETTINGS.items()},
    "bandwidth_bytes_per_s": "bandwidthBytesPerSecond",
    "rtt_s": "rttSeconds",
    "writers": "writers",
    "rate_per_s": "ratePerSecond",
}
"""JSON keys by field of `Scenario`."""


def _settings(scenario: Scenario) -> dict[str, Any]:
    values = asdict(scenario)
    return {key: values[name] for name, key in _KEYS.items()}
