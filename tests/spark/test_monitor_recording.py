"""Spark reads a monitor's recording as the page on Spark says."""

from pathlib import Path

import pytest

from tests.monitor.builders import MASTER
from tests.monitor.test_answer_recording import FAR, NEAR, Recorded, busy

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"

pytestmark = [pytest.mark.full, pytest.mark.spark]


def test_a_recording_is_a_table_of_answers(spark, tmp_path):
    seen = busy(Recorded(tmp_path / "recordings").start(), ticks=100)
    seen.stop()
    section = PAGE.read_text(encoding="utf-8").split("## Recordings of the monitor\n")[1]
    code = section.split("```python\n")[1].split("```")[0]
    names = {"spark": spark}
    exec(compile(code.replace('"recordings/', f'"{tmp_path}/recordings/'), str(PAGE), "exec"), names)
    largest = {(row.node, row.address): row["max(lag_bytes)"] for row in names["largest"].collect()}
    assert largest == {
        (MASTER, address): max(
            row.diff_bytes
            for view in seen.views
            for row in view.replicas
            if row.address == address and row.is_connected
        )
        for address in (NEAR, FAR)
    }
    assert [tuple(row) for row in names["failures"].collect()] == [(MASTER, "Connection refused", 5)]
