"""The queries of docs/spark.md: they run, and print what the page shows.

`python -m tests.spark.test_spark_page` writes their results into the page.
"""

import io
import re
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import pyarrow as pa
import pytest

from tests.analysis.replays import write_recordings
from tests.store.support import VECTORS
from trioha_analysis.arrow_tables import SCHEMAS
from trioha_analysis.commitlog.columns import TYPES
from trioha_spark.session import spark_session
from trioha_spark.sources import commit_log, session

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
QUERIES = 13
NAME = re.compile(r"`([\w.]+)`")
SPARK_COLUMNS = re.compile(r"(\w+) \w+")
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def executed(spark, sessions):
    """The page with the results of its queries; `sessions` is their folder. Number of results."""
    folders = {"/var/trioha/sessions": sessions, "/var/rocketmq/store": VECTORS / "store-5.3.3" / "store"}
    names = {"spark": spark}
    shown = 0

    def run(found):
        nonlocal shown
        code = found["code"]
        for folder, its in folders.items():
            code = code.replace(f'"{folder}"', repr(str(its)))
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, str(PAGE), "exec"), names)
        result = "\n".join(line.rstrip() for line in printed.getvalue().splitlines()).strip()
        shown += bool(result)
        return f"```python\n{found['code']}```\n" + (f"\n```text\n{result}\n```\n" if result else "")

    page, rest = PAGE.read_text(encoding="utf-8").split("## Limits\n")
    return BLOCK.sub(run, page) + "## Limits\n" + rest, shown


def names_in(table):
    """The names in the first cells of a table's rows."""
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return sorted(NAME.findall(" ".join(cells)))


def test_columns_and_options_of_the_page_are_those_of_the_sources():
    page = PAGE.read_text(encoding="utf-8")
    events, messages = page.split("\n## Columns of ")[1:]
    for section, columns, options in (
        (events, SPARK_COLUMNS.findall(session.SessionSource({}).schema()), session.OPTIONS),
        (messages.split("\n## ")[0], list(TYPES), commit_log.OPTIONS),
    ):
        described, settable = section.split("| function |")[0].split("| option |")
        assert names_in(described) == sorted(columns)
        assert names_in(settable) == sorted({*options, "storage.NAME"})


def test_tables_of_the_page_have_the_types_of_a_replays_columns():
    page = PAGE.read_text(encoding="utf-8").split("\n| table | columns |")[1].split("\n## ")[0]
    everywhere = {"session", "brokerName", "brokerId"}
    for name, schema in SCHEMAS.items():
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", page, re.MULTILINE)
        described = {
            column: kind
            for columns, kind in (some.split(": ") for some in row.split("; "))
            for column in NAME.findall(columns)
        }
        assert described == {one.name: type_of(one.type) for one in schema if one.name not in everywhere}


def type_of(kind):
    """As the page names types."""
    if pa.types.is_struct(kind):
        (value,) = {one.type for one in kind}
        assert [one.name for one in kind] == ["p50", "p99", "max"]
        return f"percentiles<{type_of(value)}>"
    if pa.types.is_list(kind):
        return f"array<{type_of(kind.value_type)}>"
    return {"int64": "long", "bool": "boolean"}.get(str(kind), str(kind))


@pytest.mark.full
@pytest.mark.spark
def test_queries_of_the_page_give_the_results_that_it_shows(spark, tmp_path):
    page, shown = executed(spark, write_recordings(tmp_path / "sessions"))
    assert page == PAGE.read_text(encoding="utf-8")
    assert shown == QUERIES


def main():
    with tempfile.TemporaryDirectory() as folder, spark_session("local[2]") as spark:
        page, _ = executed(spark, write_recordings(Path(folder) / "sessions"))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
