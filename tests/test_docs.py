"""What the documentation names is there."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
NAMED_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def names_in(path):
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_test_that_the_documentation_names_is_there():
    named = {found for page in DOCS.glob("*.md") for found in NAMED_TEST.findall(page.read_text())}
    assert len(named) >= 30
    missing = [
        f"{module}::{test}"
        for module, test in sorted(named)
        if not (TESTS / module).exists() or test not in names_in(TESTS / module)
    ]
    assert missing == []


def test_every_known_defect_is_answered():
    rows = {}
    for line in (DOCS / "known-defects.md").read_text().splitlines():
        if found := re.match(r"\| (\d+)\. ", line):
            _, _, answer, tests, _ = line.split("|")
            rows[int(found[1])] = (answer.strip(), NAMED_TEST.findall(tests))
    assert sorted(rows) == list(range(1, 16))
    later = {number for number, (answer, _) in rows.items() if answer.startswith("not in scope yet")}
    assert later == {10, 11, 13, 14}
    assert all(tests for number, (_, tests) in rows.items() if number not in later)
