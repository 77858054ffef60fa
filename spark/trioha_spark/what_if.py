"""The grid of a what-if on Spark: one task for each point and repeat."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from trioha_analysis.whatif.answer import Answer, Prediction, combine_repeats
from trioha_analysis.whatif.figures import Figures, figures
from trioha_analysis.whatif.model import Model, check, play
from trioha_analysis.whatif.scenario import Point, Scenario
from trioha_spark.job_progress import Watch, watched
from trioha_spark.session import LOCAL, spark_session, this_python

REPEATS: Final = 3
PLAYED_SCHEMA: Final = "point int, repeat int, figures binary"
_PLAYED: Final = pa.schema([("point", pa.int32()), ("repeat", pa.int32()), ("figures", pa.binary())])


def predict(
    model: Model,
    points: Sequence[Point],
    *,
    repeats: int = REPEATS,
    master: str = LOCAL,
    spark: SparkSession | None = None,
    watch: Watch | None = None,
) -> Answer:
    """Simulate `points` and the settings as recorded, `repeats` times each, on Spark.

    Uses `spark` if given, else the active session of this process, else a new one on `master`. `watch`
    receives the progress. Raises ModelError for a point that the recording has too little data for, JavaError
    or SparkError if Spark does not start.
    """
    for point in points:
        check(model, point.scenario)
    every = [Point("as recorded", model.scenario), *points]
    if spark is None:
        with spark_session(master) as own:
            found = _run(own, model, every, repeats, watch)
    else:
        found = _run(spark, model, every, repeats, watch)
    joined = [
        combine_repeats([found[index, repeat] for repeat in range(repeats)]) for index in range(len(every))
    ]
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
    # Small: the model's times and at most 20,000 puts of each stretch.
    work = partial(_play_batches, model, [point.scenario for point in points], repeats)
    with this_python(), watched(spark.sparkContext, watch):
        rows = spark.range(0, count, 1, count).mapInArrow(work, PLAYED_SCHEMA).collect()
    # Pickled by a worker of the same job.
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
