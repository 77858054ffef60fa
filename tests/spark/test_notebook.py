"""The notebook in docs/notebooks: its cells run, say what they say in it, and its outputs are there."""

import ast
import base64
import json
import sys
import tempfile
from pathlib import Path

import pandas as pd
import plotly.io as pio
import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "archive.ipynb"
DISPLAY = ("display.max_colwidth", 50, "display.max_columns", 0, "display.expand_frame_repr", True)
"""What the notebook changes, and pandas has before."""


@pytest.fixture(scope="module")
def cells():
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def run(source, names):
    """Run a cell; gives the value of its last line, as a notebook shows it."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def text_of(cell):
    return ["".join(output["data"]["text/plain"]) for output in cell["outputs"] if "data" in output]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_its_cells_run_and_say_what_they_say_in_it(spark, cells, monkeypatch, tmp_path):
    monkeypatch.delenv("TRIOHA_ARCHIVE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(pio.templates, "default", pio.templates.default)
    monkeypatch.syspath_prepend(str(NOTEBOOK.parent))
    views = {table.name for table in spark.catalog.listTables()}
    names = {"__name__": "notebook"}
    figures = compared = 0
    try:
        with pd.option_context(*DISPLAY):
            for cell in cells:
                value = run("".join(cell["source"]), names)
                # What is predicted changes with the model.
                if isinstance(value, pd.DataFrame) and "predicted" not in names:
                    assert [repr(value)] == text_of(cell)
                    compared += 1
                figures += hasattr(value, "to_plotly_json")
    finally:
        sys.modules.pop("sample_archive", None)
        for table in spark.catalog.listTables():
            if table.name not in views:
                spark.catalog.dropTempView(table.name)
    assert (figures, compared) == (4, 3)
    # Which topics grow.
    assert list(names["growth"].index) == ["Orders", "Payments", "Audit"]
    percent = names["growth"]["percent"]
    assert percent["Orders"] > 200
    assert percent["Audit"] < -50
    # Who waited and why: first the link was slow, at last the slave.
    worst = names["parts"].set_index("time").idxmax()
    assert worst["to the slave"] < worst["slave"]
    assert 40 <= worst["back"].second <= 46
    assert 10 <= worst["slave"].second <= 13
    assert names["slowest"]["cause"] == "ack"
    assert set(names["causes"]["status"]) == {"PUT_OK"}
    # What a third replica would have cost.
    predicted = names["predicted"].set_index(["longer by", "replicas"])
    for rtt in ("0", "1ms", "5ms"):
        assert predicted.loc[(rtt, 3), "p50 ms"] > predicted.loc[(rtt, 2), "p50 ms"]


def test_its_outputs_are_there_with_a_picture_of_each_plot(cells):
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data", "stream"}
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 4
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    assert all(cell["execution_count"] for cell in cells)
