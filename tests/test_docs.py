"""What the documentation names is there."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
ROOT = TESTS.parent
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
OF_DEVELOPERS = (CONTRIBUTING, *(DOCS / f"{name}.md" for name in ("development", "releasing", "testing")))
TWO_SCREENS_LINES = 100
_TOP = ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")
PAGES = (*(ROOT / f"{name}.md" for name in _TOP), *sorted(DOCS.rglob("*.md")))
NAMED_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
NAMED_PATH = re.compile(r"`((?:trioha|monitor|spark|tests|docs|configs)/[\w./]*\w)(?:::(\w+))?`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]+))?\)")
REFERENCE = re.compile(r"\b(docs/[\w/.-]*\w\.md)(?:#([\w-]+))?")
"""How code, tests and plain text name a page of the project, and a heading in it."""
NOT_OF_THE_PROJECT = re.compile(
    r"\bspec(?:/|\s+(?:# )?)(?:ha|remoting|store|pop|timer|acl2|session|versions|section|[0-9])\b"
    r"|\bdesign(?:\.md)?,?\s+(?:# )?section\b",
    re.IGNORECASE,
)
REFERRING = ("*.py", "*.pyi", "*.c", "*.java", "*.conf", "*.yml", "*.md")
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@cache
def names_in(path):
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def headings_in(page):
    """Anchors of a page's headings, as GitHub makes them."""
    return [
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in page.read_text().splitlines()
        if line.startswith("#")
    ]


def texts_with_references():
    """Path and text of all code, tests, settings and pages."""
    folders = (ROOT / name for name in ("trioha", "monitor", "spark", "tests", "configs", "docs"))
    paths = [*PAGES, *(path for folder in folders for each in REFERRING for path in folder.rglob(each))]
    return [(path.relative_to(ROOT), path.read_text()) for path in sorted(set(paths))]


def test_every_test_that_the_documentation_names_is_there():
    named = {found for page in DOCS.rglob("*.md") for found in NAMED_TEST.findall(page.read_text())}
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


def test_contributing_has_two_screens():
    assert len(CONTRIBUTING.read_text().splitlines()) <= TWO_SCREENS_LINES


def test_every_path_and_name_that_pages_for_developers_give_is_there():
    named = [found for page in OF_DEVELOPERS for found in NAMED_PATH.findall(page.read_text())]
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
            found = page.parent / target if target else page
            if not found.exists() or (anchor and anchor not in headings_in(found)):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_every_reference_to_a_page_leads_to_it_and_to_its_heading():
    known = {page.relative_to(ROOT).as_posix(): headings_in(page) for page in DOCS.rglob("*.md")}
    referring, broken = 0, []
    for path, text in texts_with_references():
        for name, heading in REFERENCE.findall(text):
            # A fact about RocketMQ is named with its heading: the pages are long.
            is_whole = heading or path.suffix == ".md" or not name.startswith("docs/protocol/")
            referring += name.startswith("docs/protocol/")
            if name not in known or not is_whole or (heading and heading not in known[name]):
                broken.append(f"{path}: {name}#{heading}")
    assert broken == []
    assert referring >= 150


def test_no_reference_leads_out_of_the_project():
    found = [
        f"{path}: {match[0]!r}"
        for path, text in texts_with_references()
        for match in NOT_OF_THE_PROJECT.finditer(text)
    ]
    assert found == []


def test_headings_of_the_pages_about_rocketmq_are_unique():
    pages = sorted((DOCS / "protocol").glob("*.md"))
    assert len(pages) >= 8
    for page in pages:
        headings = headings_in(page)
        assert sorted(set(headings)) == sorted(headings), page.name


def test_the_index_of_the_documentation_has_every_page():
    index = (DOCS / "README.md").read_text()
    protocol = (DOCS / "protocol" / "README.md").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        if page.name == "README.md" or not name.startswith("protocol/"):
            assert name == "README.md" or f"({name})" in index, name
        else:
            assert f"({page.name})" in protocol, name


def test_the_navigation_of_the_site_has_every_page_once():
    """As `make docs` checks it, without mkdocs."""
    named = re.findall(r"[\w/.-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    beside = [f"project/{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")]
    assert sorted(named) == sorted([*pages, *beside])


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
