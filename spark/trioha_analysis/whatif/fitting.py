"""Fit of the times of slave and link.

The master records an ack when it handles it, so the measured time includes a part of the master's queue,
which the simulation adds again. The recorded settings are simulated with the times of slave and link scaled
until the median time from append to ack equals the recorded one, and with their tail stretched until p99
does. Nothing else is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import evolve

from trioha_analysis.whatif.costs import Costs
from trioha_analysis.whatif.figures import Figures, figures
from trioha_analysis.whatif.scenario import Scenario
from trioha_analysis.whatif.simulation import Puts, simulate

FIT_PUTS: Final = 4500
"""Maximum number of puts in each simulation of the fit."""
ROUNDS: Final = 2
STEPS: Final = 6
FACTORS: Final = (0.05, 5.0)
"""Range of both factors."""
_SEED: Final = 20_261_121


def fit(costs: Costs, scenario: Scenario, stretches: Sequence[Puts], recorded: Figures) -> Costs:
    """`costs` fitted to the `recorded` figures of `stretches` with the settings of `scenario`.

    Unchanged without acks.
    """
    wanted = recorded.lag_seconds
    if wanted is None or not scenario.slaves:
        return costs
    count = FIT_PUTS // len(stretches)
    played = [evolve(puts, bytes=puts.bytes[:count], at_s=puts.at_s[:count]) for puts in stretches]

    def missing(name: str, candidate: Costs) -> float:
        outcomes = [
            simulate(scenario, candidate, puts, seed=_SEED + index) for index, puts in enumerate(played)
        ]
        found = figures(outcomes).lag_seconds
        return -1.0 if found is None else found[name] - wanted[name]

    factor = tail = 1.0
    for _ in range(ROUNDS):
        factor = _root(lambda value: missing("p50", costs.slowed(value, tail=tail)))  # noqa: B023
        tail = _root(lambda value: missing("p99", costs.slowed(factor, tail=value)))  # noqa: B023
    return costs.slowed(factor, tail=tail)


def _root(rises: Callable[[float], float]) -> float:
    """Root of an increasing function within `FACTORS`, by bisection of the ratio; else the nearer end."""
    low, high = FACTORS
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        if rises(middle) < 0:
            low = middle
        else:
            high = middle
    return float((low * high) ** 0.5)
