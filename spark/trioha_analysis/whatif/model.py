"""A model of a recorded session: calibrated once, simulated with any settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from attrs import evolve, frozen

from trioha.archive.session_paths import find_recordings
from trioha.config.model import AckMode
from trioha.errors import TriohaError
from trioha.recording.layout import SOURCE_NODE
from trioha.recording.reader import Session, open_session
from trioha.recording.records import read_records
from trioha_analysis.whatif.costs import Costs, costs_of
from trioha_analysis.whatif.figures import Figures, figures, outcome_of
from trioha_analysis.whatif.fitting import fit
from trioha_analysis.whatif.producers import ProducerModel, Producers, producer_model
from trioha_analysis.whatif.scenario import Scenario, ack_mode_of, recorded_scenario
from trioha_analysis.whatif.simulation import Outcome, Puts, simulate
from trioha_analysis.whatif.trace import Trace, read_stretches

STRETCHES: Final = 3
"""Stretches of a long session that are simulated."""
PUTS_MAX: Final = 20_000
"""Simulated puts of a stretch."""
SYNC_PUTS_MAX: Final = 32
"""Puts in a sync that puts or acks wait for, at most."""
SLAVE_RECORDS_MAX: Final = 500_000
"""First records of a slave's session, in which its syncs are measured."""


class ModelError(TriohaError):
    """A session that cannot be modelled, or a scenario that it has no data for."""


@frozen(eq=False)
class Model:
    """A session's nodes and producers; small enough to be sent to every Spark task."""

    session: Session
    scenario: Scenario
    """The settings as recorded."""
    costs: Costs
    producer_model: ProducerModel
    stretches: tuple[Puts, ...]
    """Puts of each stretch."""
    recorded: Figures


def find_model_sessions(paths: Iterable[str | Path]) -> tuple[Session, list[Session]]:
    """The session of the only master in `paths`, and those of its slaves.

    Raises StoreError if a path is not a session, ModelError unless exactly one session was recorded by a
    master.
    """
    sessions = [open_session(path) for path in find_recordings(paths)]
    masters = [one for one in sessions if not one.is_slave and one.identity.source == SOURCE_NODE]
    if len(masters) != 1:
        names = ", ".join(one.path.name for one in masters) or "none"
        raise ModelError(
            "what-if needs the session of one master, recorded by itself (trioha.recordDir), "
            f"and found {names}"
        )
    name = masters[0].identity.broker_name
    return masters[0], [one for one in sessions if one.is_slave and one.identity.broker_name == name]


def model_of(
    master: Session,
    slaves: Sequence[Session] = (),
    *,
    producers: Producers = Producers.AUTO,
    traces: Sequence[Trace] | None = None,
    cores: int | None = None,
) -> Model:
    """Calibrate a model of a master's session, with the sessions of its slaves if there are any.

    `cores`: of the machine, if nodes and producers were on one.
    `traces`: the stretches to use; by default up to `STRETCHES`, spread over the session. Raises ModelError
    if the session has no put, or if `producers` is CLOSED and no put waited.
    """
    if traces is None:
        traces = read_stretches(master, count=STRETCHES)
    if not traces:
        raise ModelError(f"{master.path}: nothing was put in this session")
    found = producer_model(traces, producers)
    if producers is Producers.CLOSED and not found.writers:
        raise ModelError(
            f"{master.path}: no put waited, so that it does not show a closed loop; leave it out"
        )
    scenario = recorded_scenario(
        master,
        slaves=max(_slaves(trace) for trace in traces),
        ack_mode=ack_mode_of(slaves[0] if slaves else master),
    )
    scenario = evolve(scenario, cores=cores)
    costs = costs_of(
        traces,
        [read_records(slave, seq_to=SLAVE_RECORDS_MAX).array for slave in slaves],
        is_sync_flush=scenario.is_sync_flush,
        is_joined=found.is_joined,
    )
    stretches = tuple(_puts(trace, found) for trace in traces)
    recorded = figures([outcome_of(trace) for trace in traces])
    if scenario.ack_mode is AckMode.WRITTEN:
        # With flushed acks the uncertain part is the disk, not the slave.
        costs = fit(costs, scenario, stretches, recorded)
    return Model(master, scenario, costs, found, stretches, recorded)


def _slaves(trace: Trace) -> int:
    """Maximum number of slaves that acknowledged at the same time."""
    turns = sorted(turn for ts_ns in trace.ack_ts_ns for turn in ((int(ts_ns[0]), 1), (int(ts_ns[-1]), -1)))
    return int(max(np.cumsum([step for _, step in turns]), default=0))


def _puts(trace: Trace, found: ProducerModel) -> Puts:
    sizes = trace.put_bytes[:PUTS_MAX]
    at_s = (trace.put_ts_ns[:PUTS_MAX] - trace.put_ts_ns[0]) / 1e9
    if found.kind is Producers.CLOSED:
        return Puts(sizes, at_s, found.writers, found.client_s, found.think, is_joined=found.is_joined)
    return Puts(sizes, at_s)


def check(model: Model, scenario: Scenario) -> None:
    """Raise ModelError if the recording lacks data that `scenario` needs."""
    path = model.session.path
    if scenario.slaves and not model.scenario.slaves:
        raise ModelError(
            f"{path}: no slave acknowledged anything in this session, so the time of a slave is unknown; "
            "ask with --slaves 0, or name another session"
        )
    if scenario.writers is not None and model.producer_model.kind is Producers.OPEN:
        raise ModelError(
            f"{path}: its producers are an open loop, which shows no writers that think; "
            "leave out --writers, or say --producers closed"
        )
    syncs = scenario.is_sync_flush or scenario.ack_mode is AckMode.FLUSHED
    if syncs and not any(model.costs.sync.quantiles):
        raise ModelError(f"{path}: no flush was recorded, so the time of a sync is unknown")


def remarks(model: Model, scenarios: Iterable[Scenario]) -> list[str]:
    """Limits of the predictions for `scenarios`, in sentences."""
    asked = any(one.is_sync_flush or one.ack_mode is AckMode.FLUSHED for one in scenarios)
    usual_bytes = float(np.median(np.concatenate([puts.bytes for puts in model.stretches])))
    if asked and model.costs.sync_bytes > SYNC_PUTS_MAX * usual_bytes:
        remark = (
            f"the recorded syncs put {model.costs.sync_bytes:,} bytes on disk at a time: those that puts "
            "wait for are likely to be quicker than predicted; a recording with SYNC_FLUSH shows them"
        )
        return [remark]
    return []


def play(model: Model, scenario: Scenario, *, repeat: int) -> Outcome:
    """Simulate a stretch of the session with the settings of `scenario`; `repeat` selects stretch and
    seed."""
    puts = _changed(model.stretches[repeat % len(model.stretches)], scenario)
    return simulate(scenario, model.costs, puts, seed=repeat)


def _changed(puts: Puts, scenario: Scenario) -> Puts:
    """The puts with the producers of `scenario`."""
    if scenario.rate_per_s is not None:
        count = len(puts.bytes)
        even_s = np.arange(count) / scenario.rate_per_s
        if puts.writers or not puts.at_s[-1]:
            return Puts(puts.bytes, even_s)
        return Puts(puts.bytes, puts.at_s * (even_s[-1] / puts.at_s[-1]))
    if scenario.writers is not None:
        return evolve(puts, writers=scenario.writers)
    return puts
