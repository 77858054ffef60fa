"""Fit of the times of slave and link.

The master records an ack when it handles it, so the measured time includes a part of the master's queue,
which the simulation adds again. The recorded settings are simulated with the times of slave and link scaled
until the median time from append to ack equals the recorded one, and with their tail stretched until p99
does; neither where the simulation is within `CLOSE` of the recording anyway, since a fit of what is left
would be one of the simulation's own chance. Nothing else is fitted.
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
REPEATS_MAX: Final = 8
"""Maximum number of simulations of a recording that has fewer puts than that."""
REPEATED_PUTS_MIN: Final = 200
"""Number of puts below which a recording is simulated once: its p99 is one put's time in any case."""
ROUNDS: Final = 2
STEPS: Final = 6
CLOSE: Final = {"p50": 0.05, "p99": 0.1}
"""Relative errors that are not fitted."""
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
    played_puts = sum(len(puts.bytes) for puts in played)
    if played_puts >= REPEATED_PUTS_MIN:
        # Short recordings are simulated several times: a percentile of few puts varies.
        played *= max(1, min(REPEATS_MAX, FIT_PUTS // played_puts))

    def missing(name: str, candidate: Costs) -> float:
        outcomes = [
            simulate(scenario, candidate, puts, seed=_SEED + index) for index, puts in enumerate(played)
        ]
        found = figures(outcomes).lag_seconds
        return -1.0 if found is None else found[name] - wanted[name]

    def is_close(name: str, candidate: Costs) -> bool:
        return abs(missing(name, candidate)) <= CLOSE[name] * wanted[name]

    factor = tail = 1.0
    for _ in range(ROUNDS):
        if not is_close("p50", costs.slowed(factor, tail=tail)):
            factor = _root(lambda value: missing("p50", costs.slowed(value, tail=tail)))  # noqa: B023
        if not is_close("p99", costs.slowed(factor, tail=tail)):
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
