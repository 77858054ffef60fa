"""The grid on Spark: one task for each point and repeat."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import asdict, evolve, frozen
from pyspark.sql import SparkSession

from trioha_spark.job_progress import Watch, watched
from trioha_spark.session import LOCAL, spark_session, this_python
from trioha_spark.whatif.figures import Figures, figures
from trioha_spark.whatif.model import Model, check, play, remarks
from trioha_spark.whatif.scenario import Point, Scenario

REPEATS: Final = 3
PLAYED_SCHEMA: Final = "point int, repeat int, figures binary"
_PLAYED: Final = pa.schema([("point", pa.int32()), ("repeat", pa.int32()), ("figures", pa.binary())])


@frozen(eq=False)
class Prediction:
    """What the model says of one point."""

    point: Point
    figures: Figures
    """Statuses of all repeats; percentiles are the medians of theirs."""


@frozen(eq=False)
class Answer:
    """What the model says."""

    model: Model
    unchanged: Figures
    """Predicted with the settings as recorded."""
    predictions: tuple[Prediction, ...]
    repeats: int

    @property
    def error(self) -> Mapping[str, float | None]:
        """Predicted over recorded, less 1, with the settings as recorded; None where nothing was recorded."""
        return {
            "p50": _ratio(self.unchanged.latency_ms, self.model.recorded.latency_ms, "p50"),
            "p90": _ratio(self.unchanged.latency_ms, self.model.recorded.latency_ms, "p90"),
            "p99": _ratio(self.unchanged.latency_ms, self.model.recorded.latency_ms, "p99"),
            "lagSecondsP99": _ratio(self.unchanged.lag_seconds, self.model.recorded.lag_seconds, "p99"),
            "putsPerSecond": self.unchanged.puts_per_s / self.model.recorded.puts_per_s - 1
            if self.model.recorded.puts_per_s
            else None,
        }


def predict(
    model: Model,
    points: Sequence[Point],
    *,
    repeats: int = REPEATS,
    master: str = LOCAL,
    spark: SparkSession | None = None,
    watch: Watch | None = None,
) -> Answer:
    """Play `points`, and the settings as recorded, `repeats` times each on Spark.

    Uses `spark` if given, else the session that runs in this process, else one of its own on `master`.
    `watch` is told how far it is. Raises ModelError for a point that the recording says too little for,
    JavaError or SparkError if Spark cannot be started.
    """
    for point in points:
        check(model, point.scenario)
    every = [Point("as recorded", model.scenario), *points]
    if spark is None:
        with spark_session(master) as own:
            found = _run(own, model, every, repeats, watch)
    else:
        found = _run(spark, model, every, repeats, watch)
    joined = [join([found[index, repeat] for repeat in range(repeats)]) for index in range(len(every))]
    return Answer(
        model,
        joined[0],
        tuple(Prediction(point, one) for point, one in zip(points, joined[1:], strict=True)),
        repeats,
    )


def _run(
    spark: SparkSession, model: Model, points: Sequence[Point], repeats: int, watch: Watch | None
) -> dict[tuple[int, int], Figures]:
    count = len(points) * repeats
    # What a task needs is small: the model's times and at most some ten thousand puts of each stretch.
    work = partial(_play_batches, model, [point.scenario for point in points], repeats)
    with this_python(), watched(spark.sparkContext, watch):
        rows = spark.range(0, count, 1, count).mapInArrow(work, PLAYED_SCHEMA).collect()
    # Pickled by a worker of the same job, as Spark itself does with every function that it sends.
    return {(row["point"], row["repeat"]): pickle.loads(row["figures"]) for row in rows}  # noqa: S301


def _play_batches(
    model: Model, scenarios: Sequence[Scenario], repeats: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            index, repeat = divmod(number, repeats)
            found = figures([play(model, scenarios[index], repeat=repeat)])
            yield pa.RecordBatch.from_pydict(
                {"point": [index], "repeat": [repeat], "figures": [pickle.dumps(found)]}, schema=_PLAYED
            )


def join(repeats: Sequence[Figures]) -> Figures:
    """One out of the figures of several repeats: counts add up, of percentiles the median counts."""
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
    """For machines: `recorded`, `model`, `points`."""
    model = answer.model
    return {
        "session": model.session.path.resolve().name,
        "recorded": {"settings": _settings(model.scenario), **model.recorded.document()},
        "model": {
            "producers": model.producing.kind.value,
            "writers": model.producing.writers,
            "ratePerSecond": model.producing.rate_per_s,
            "repeats": answer.repeats,
            "error": dict(answer.error),
            "remarks": remarks(model, (one.point.scenario for one in answer.predictions)),
            **answer.unchanged.document(),
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
    "role": "brokerRole",
    "slaves": "slaves",
    "in_sync_replicas": "inSyncReplicas",
    "min_in_sync_replicas": "minInSyncReplicas",
    "all_ack_in_sync_state_set": "allAckInSyncStateSet",
    "enable_auto_in_sync_replicas": "enableAutoInSyncReplicas",
    "slave_timeout_ms": "slaveTimeout",
    "sync_flush_timeout_ms": "syncFlushTimeout",
    "flush_disk_type": "flushDiskType",
    "transfer_batch_bytes": "haTransferBatchSize",
    "transfer_batch_bytes_max": "trioha.haTransferBatchMax",
    "ack_mode": "trioha.haAckMode",
    "gap_bytes_max": "haMaxGapNotInSync",
    "silence_ms_max": "haMaxTimeSlaveNotCatchup",
    "bandwidth_bytes_per_s": "bandwidthBytesPerSecond",
    "rtt_s": "rttSeconds",
    "writers": "writers",
    "rate_per_s": "ratePerSecond",
}


def _settings(scenario: Scenario) -> dict[str, Any]:
    values = asdict(scenario)
    return {key: values[name] for name, key in _KEYS.items()}
