"""The parts of a recorded session, their stages, and predictions from them.

A session is cut into `PARTS`, of which the first records are read. Each part is played with its own stages; a
prediction is all parts together, and its range that of the parts one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from attrs import evolve, frozen

from trioha.archive.session_paths import find_recordings
from trioha.config.keys.ha import AckMode
from trioha.errors import TriohaError
from trioha.recording.events import Kind
from trioha.recording.reader import Segment, Session, open_session
from trioha_analysis.whatif.figures import PERCENTILES, Figures, figures, outcome_of
from trioha_analysis.whatif.play import Outcome, play
from trioha_analysis.whatif.recorded import (
    Floats,
    Producers,
    Runs,
    Stages,
    merged,
    puts_of,
    serial_share,
    slaves_of,
    stages_of,
    writers_of,
)
from trioha_analysis.whatif.scenario import Point, Scenario, ack_mode_of, recorded_scenario
from trioha_sessions.records import read_records, read_segment, record_dtype
from trioha_sessions.segments import read_segments
from trioha_sessions.state_arrays import Array, Ints

PARTS: Final = 4
PART_RECORDS_MAX: Final = 100_000
"""Records of a part that are read: 5 MB."""
PART_PUTS_MIN: Final = 100
"""Fewest puts of a part: a shorter recording has fewer parts."""
SLAVE_RECORDS_MAX: Final = 500_000
"""First records of a slave's session, in which its syncs are measured."""
SYNC_PUTS_MAX: Final = 32
"""Puts in a sync that puts or acks wait for, at most."""


class ModelError(TriohaError):
    """A session that cannot be modelled, or a scenario that it has no data for."""


@frozen(eq=False)
class ModelPart:
    """A part of a session."""

    runs: Runs
    stages: Stages


@frozen(eq=False)
class Model:
    """What a session shows of its puts."""

    session: Session
    scenario: Scenario
    """The settings as recorded."""
    parts: tuple[ModelPart, ...]
    writers: int
    """Of a closed loop of the producers; 0 for an open one."""
    serial: float | None
    """Share of an ack's time for which a frame holds up the next one; None if no frames overlapped."""
    recorded: Figures


@frozen(eq=False)
class Prediction:
    """The puts with other settings."""

    point: Point
    figures: Figures
    latency_range_ms: dict[str, tuple[float, float]] | None
    """Lowest and highest of each percentile among the parts; None if no put waited or there is one part."""


@frozen(eq=False)
class Answer:
    """The recording, what the model says of it, and predictions."""

    model: Model
    as_recorded: Prediction
    predictions: tuple[Prediction, ...]


def find_model_sessions(paths: Iterable[str | Path]) -> tuple[Session, list[Session]]:
    """The session of the only master in `paths`, and those of its slaves.

    Raises StoreError if a path is not a session, ModelError unless exactly one session was recorded by a
    master.
    """
    sessions = [open_session(path) for path in find_recordings(paths)]
    masters = [one for one in sessions if not one.is_slave]
    if len(masters) != 1:
        names = ", ".join(one.path.name for one in masters) or "none"
        raise ModelError(f"what-if needs the session of one master (trioha.recordDir), and found {names}")
    name = masters[0].identity.broker_name
    return masters[0], [one for one in sessions if one.is_slave and one.identity.broker_name == name]


def model_of(
    master: Session,
    slaves: Sequence[Session] = (),
    *,
    producers: Producers = Producers.AUTO,
    windows: Sequence[Array] | None = None,
) -> Model:
    """The model of a master's session, with the sessions of its slaves if there are any.

    `windows`: its records, or some of each part; by default read from the session. Raises ModelError if the
    session has no put, or if `producers` is CLOSED and no put waited.
    """
    read = [puts_of(records) for records in (read_windows(master) if windows is None else windows)]
    read = [runs for runs in read if len(runs.puts)]
    if not read:
        raise ModelError(f"{master.path}: nothing was put in this session")
    found = [merged(puts) for puts in read]
    if len(found) == 1:
        count = min(PARTS, len(found[0].puts), len(read[0].puts) // PART_PUTS_MIN)
        found = found[0].cut(max(1, count))
    writers = writers_of(read, producers)
    if producers is Producers.CLOSED and not writers:
        raise ModelError(
            f"{master.path}: no put waited, so that it does not show a closed loop; leave it out"
        )
    scenario = recorded_scenario(
        master,
        slaves=max(map(slaves_of, found)),
        ack_mode=ack_mode_of(slaves[0] if slaves else master),
    )
    syncs = [_syncs(slave) for slave in slaves]
    return Model(
        session=master,
        scenario=scenario,
        parts=tuple(
            ModelPart(
                runs,
                stages_of(
                    runs,
                    slaves=scenario.slaves,
                    is_sync_flush=scenario.is_sync_flush,
                    writers=writers,
                    slave_syncs=syncs,
                ),
            )
            for runs in found
        ),
        writers=writers,
        serial=serial_share(found),
        recorded=figures([outcome_of(puts) for puts in read]),
    )


def read_windows(session: Session) -> list[Array]:
    """All records of a session, or, of a long one, the first ones of each part."""
    segments = read_segments(session).segments
    total = sum(segment.records for segment in segments)
    if total <= PARTS * PART_RECORDS_MAX:
        return [_read(session, segments, 0, total)]
    firsts = [total * number // PARTS for number in range(PARTS)]
    return [_read(session, segments, first, PART_RECORDS_MAX) for first in firsts]


def _read(session: Session, segments: Sequence[Segment], first: int, count: int) -> Array:
    parts = [np.zeros(0, record_dtype(session))]
    for segment in segments:
        if first < segment.records and count > 0:
            part = read_segment(session, segment, first=first, count=count).array
            parts.append(part)
            count -= min(count, segment.records - first)
        first = max(0, first - segment.records)
    return np.concatenate(parts)


def _syncs(slave: Session) -> tuple[Floats, Ints]:
    records = read_records(slave, seq_to=SLAVE_RECORDS_MAX).array
    syncs = records[records["kind"] == Kind.FLUSHED]
    return syncs["aux"] / 1e9, np.diff(syncs["offset"].astype(np.int64))


def check(model: Model, scenario: Scenario) -> None:
    """Raise ModelError if the recording lacks data that `scenario` needs."""
    path, recorded = model.session.path, model.scenario
    if scenario.slaves and not any(len(part.stages.answer_s) for part in model.parts if part.stages.slaves):
        raise ModelError(
            f"{path}: no slave acknowledged anything in this session, so the time of a slave is unknown; "
            "ask with --slaves 0, or name another session"
        )
    if scenario.writers is not None and not model.writers:
        raise ModelError(
            f"{path}: its producers are an open loop, which shows no writers that think; "
            "leave out --writers, or say --producers closed"
        )
    if recorded.ack_mode is AckMode.FLUSHED is not scenario.ack_mode:
        raise ModelError(f"{path}: its acks waited for the disk; their time without it is unknown")
    syncs = scenario.is_sync_flush or scenario.ack_mode is not recorded.ack_mode
    if syncs and not any(len(part.stages.sync_s) for part in model.parts):
        raise ModelError(f"{path}: no flush was recorded, so the time of a sync is unknown")


def remarks(model: Model, scenarios: Iterable[Scenario]) -> list[str]:
    """Limits of the predictions for `scenarios`, in sentences."""
    found, recorded = [], model.scenario
    sync_bytes = max(part.stages.sync_bytes for part in model.parts)
    put_bytes = np.median(np.concatenate([part.runs.bytes / part.runs.puts for part in model.parts]))
    asked = list(scenarios)
    syncs = any(one.is_sync_flush or one.ack_mode is not recorded.ack_mode for one in asked)
    if syncs and sync_bytes > SYNC_PUTS_MAX * put_bytes:
        found.append(
            f"the recorded syncs put {sync_bytes:,} bytes on disk at a time: those that puts wait for are "
            "likely to be quicker than predicted; a recording with SYNC_FLUSH shows them"
        )
    load = [(one.writers, one.rate_per_s, one.transfer_batch_bytes) for one in (recorded, *asked)]
    more = any(one != load[0] for one in load)
    if more and model.serial is None:
        found.append(
            "no frames overlapped in the recording: those of different puts are taken to be handled one "
            "after the other, those of one run of puts together, and ranges have the other cases"
        )
    return found


def predict(
    model: Model,
    points: Sequence[Point],
    *,
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> Answer:
    """The puts as recorded, and at each of `points`. Raises ModelError as `check` does.

    `watch` is called with how many of how many are done.
    """
    for point in points:
        check(model, point.scenario)
    every = [Point("as recorded", model.scenario), *points]
    found: list[Prediction] = []
    for point in every:
        if watch is not None:
            watch(len(found), len(every))
        found.append(_predicted(model, point, seed))
    return Answer(model, found[0], tuple(found[1:]))


def _predicted(model: Model, point: Point, seed: int) -> Prediction:
    # Shares of runs, and of frames of one run; the range has both extremes of what is not known.
    shares = [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)] if model.serial is None else [(model.serial, model.serial)]
    outcomes, *others = [_outcomes(model, point.scenario, *share, seed) for share in shares]
    alone = [figures([one]).latency_ms for played in (outcomes, *others) for one in played]
    known = [one for one in alone if one is not None]
    return Prediction(
        point,
        figures(outcomes),
        {name: (min(one[name] for one in known), max(one[name] for one in known)) for name in PERCENTILES}
        if len(known) > 1
        else None,
    )


def _outcomes(
    model: Model, scenario: Scenario, serial: float, frame_serial: float, seed: int
) -> list[Outcome]:
    """Of each part. A part without a whole row, or without a sync, has those of another one."""
    usual = max((part.stages for part in model.parts), key=lambda stages: len(stages.answer_s))
    return [
        play(
            part.runs,
            part.stages if len(part.stages.answer_s) else evolve(usual, think_s=part.stages.think_s),
            scenario,
            writers=model.writers,
            syncs_are_added=scenario.ack_mode is not model.scenario.ack_mode,
            serial=serial,
            frame_serial=frame_serial,
            seed=seed + number,
        )
        for number, part in enumerate(model.parts)
    ]
