"""What the documentation names is there."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
ROOT = TESTS.parent
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = (ROOT / "README.md", CONTRIBUTING, ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md")))
NAMED_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
NAMED_PATH = re.compile(r"`((?:trioha|monitor|spark|tests|docs|configs)/[\w./]*\w)(?:::(\w+))?`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#([^)]+))?\)")
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


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


def test_every_known_defect_and_every_test_of_rocketmqs_controller_mode_has_a_test():
    for page, row in (("known-defects.md", r"\| \d+\. "), ("rocketmq-tests.md", r"\| `\w+\.\w+`")):
        rows = [line for line in (DOCS / page).read_text().splitlines() if re.match(row, line)]
        assert len(rows) >= 10
        assert [line for line in rows if not NAMED_TEST.search(line.split("|")[-2])] == []


def test_every_path_and_name_that_contributing_gives_is_there():
    named = NAMED_PATH.findall(CONTRIBUTING.read_text())
    assert len(named) >= 50
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and not re.search(rf"\b{name}\b", (ROOT / path).read_text()))
    ]
    assert missing == []


def test_every_link_leads_to_a_page_and_a_heading():
    broken = []
    for page in PAGES:
        for target, anchor in LINK.findall(page.read_text()):
            found = page.parent / target
            headings = ()
            if anchor and found.exists():
                headings = {
                    re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                    for line in found.read_text().splitlines()
                    if line.startswith("#")
                }
            if not found.exists() or (anchor and anchor not in headings):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_the_index_of_the_documentation_has_every_page():
    index = (DOCS / "README.md").read_text()
    assert [page.name for page in sorted(DOCS.glob("*.md")) if f"({page.name})" not in index] == ["README.md"]


def test_what_examples_import_is_there():
    imported = [
        (node.module, alias.name)
        for page in PAGES
        for block in PYTHON_BLOCK.findall(page.read_text())
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert len(imported) >= 5
    missing = []
    for module, name in imported:
        parts = module.split(".")
        sources = [
            root.joinpath(*parts).with_suffix(".py")
            if root.joinpath(*parts).with_suffix(".py").exists()
            else root.joinpath(*parts, "__init__.py")
            for root in (ROOT, ROOT / "spark", ROOT / "monitor")
        ]
        if not any(source.exists() and name in all_names_in(source) for source in sources):
            missing.append(f"{module}.{name}")
    assert missing == []


def all_names_in(path):
    """Functions, classes and imported names of a module."""
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    return (
        imported
        | assigned
        | {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }
    )
