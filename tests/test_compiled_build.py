"""Modules are compiled where a compiler is, and only a module of the present source is used."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import has_compiler, missing_requirements, module_path, sources
from tests.compiled_code import plain_copy
from trioha.compiled import MODULES, description, find, source_of
from trioha.recording import compiled_events
from trioha.remoting import compiled_pulls, compiled_sends
from trioha.store import compiled_index, compiled_records, compiled_runs, system

ROOT = Path(__file__).parents[1]
needs_compiler = pytest.mark.skipif(
    not has_compiler() or bool(missing_requirements()),
    reason=f"no C compiler, TRIOHA_PURE is set, or missing (run make setup): {missing_requirements()}",
)
HEAD = 'from typing import Final\n\nSOURCE_SHA256: Final = ""\n'
"""What the hook expects in a source."""


def tree(folder: Path, *, source: str) -> Path:
    """A source tree with nothing but the build hook and one source of that text."""
    (folder / "trioha/store").mkdir(parents=True)
    shutil.copy(ROOT / "hatch_build.py", folder)
    (folder / "trioha/store/compiled_records.py").write_text(source)
    return folder


def build(folder: Path, **variables: str) -> str:
    """Run the hook in the tree, as `make setup` does; returns what it says. It never fails an install."""
    done = subprocess.run(
        [sys.executable, "hatch_build.py"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "TRIOHA_PURE"} | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def modules(folder: Path) -> list[Path]:
    return [path for path in (folder / "trioha/store").iterdir() if path.name != "compiled_records.py"]


@pytest.mark.full
@needs_compiler
@pytest.mark.timeout(600)
def test_a_module_is_compiled_again_after_an_edit_and_only_then(tmp_path: Path) -> None:
    folder = tree(tmp_path, source=f"{HEAD}ANSWER: Final = 42\n")
    source = folder / "trioha/store/compiled_records.py"
    module = module_path(source)
    module.write_bytes(b"made of " + hashlib.sha256(b"the source before").hexdigest().encode())
    assert build(folder) == ""
    assert modules(folder) == [module]
    compiled_ns = module.stat().st_mtime_ns
    assert build(folder) == ""
    assert module.stat().st_mtime_ns == compiled_ns
    # In a process of its own: what a test loads stays loaded.
    code = "import _compiled_records as made; print(made.ANSWER, made.SOURCE_SHA256)"
    said = subprocess.check_output([sys.executable, "-c", code], cwd=module.parent, text=True)
    assert said.split() == ["42", hashlib.sha256(source.read_bytes()).hexdigest()]


def test_the_sources_of_the_tree_are_those_that_are_loaded() -> None:
    assert sources() == [source_of(name) for name in MODULES]
    assert {*sources()} == {*ROOT.glob("trioha/*/compiled_*.py"), ROOT / "trioha/store/system.c"}


def test_all_of_a_module_is_compiled_or_nothing_is() -> None:
    for module in (
        compiled_events,
        compiled_pulls,
        compiled_sends,
        compiled_index,
        compiled_records,
        compiled_runs,
        system,
    ):
        plain = plain_copy(module)
        own = [key for key, value in vars(plain).items() if getattr(value, "__module__", None) == "_plain"]
        assert own
        is_compiled = {vars(module)[key].__module__ != module.__name__ for key in own}
        assert is_compiled == {description() == "compiled"}


@pytest.mark.parametrize("variables", [{"CC": "/nonexistent/cc"}, {"TRIOHA_PURE": "1"}])
def test_without_a_compiler_nothing_is_compiled_and_nothing_is_said(
    variables: dict[str, str], tmp_path: Path
) -> None:
    folder = tree(tmp_path, source=(ROOT / "trioha/store/compiled_records.py").read_text())
    assert build(folder, **variables) == ""
    assert modules(folder) == []


@pytest.mark.full
@needs_compiler
@pytest.mark.timeout(600)
def test_a_module_that_cannot_be_compiled_leaves_plain_python(tmp_path: Path) -> None:
    folder = tree(tmp_path, source=f'{HEAD}wrong: int = "text"\n')
    said = build(folder)
    assert "Incompatible types in assignment" in said
    assert "trioha runs in plain Python" in said
    assert modules(folder) == []


@pytest.mark.full
@needs_compiler
def test_c_that_cannot_be_compiled_leaves_plain_python(tmp_path: Path) -> None:
    folder = tree(tmp_path, source="")
    (folder / "trioha/store/compiled_records.py").unlink()
    source = folder / "trioha/store/system.c"
    source.write_text("int walk(void) { return undeclared; }")
    said = build(folder)
    assert "undeclared" in said
    assert "trioha runs in plain Python" in said
    assert modules(folder) == [source]


# -- which one is used ---------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to import modules from, with the source of one."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "compiled_records.py").write_text("the source")
    return tmp_path


def made_of(source: bytes) -> str:
    return f"SOURCE_SHA256 = {hashlib.sha256(source).hexdigest()!r}"


def test_a_module_of_the_present_source_is_used(place: Path) -> None:
    (place / "kernel_that_fits.py").write_text(made_of(b"the source"))
    found, said = find("kernel_that_fits", source=place / "compiled_records.py", env={})
    assert found is not None
    assert said == "compiled"


def test_a_module_of_an_edited_source_is_not_used(place: Path) -> None:
    (place / "kernel_of_before.py").write_text(made_of(b"the source before"))
    found, said = find("kernel_of_before", source=place / "compiled_records.py", env={})
    assert found is None
    assert said == "pure, the compiled code is of another compiled_records.py: run make setup"


def test_a_module_that_cannot_be_loaded_is_named(place: Path) -> None:
    for number, (text, reason) in enumerate(
        (
            ("import librt_that_is_missing", "needs librt_that_is_missing"),
            ("raise ImportError('ABI 5')", "cannot be loaded: ABI 5"),
            ("raise ValueError('ABI 6')", "cannot be loaded: ABI 6"),
        )
    ):
        name = f"kernel_that_fails_{number}"
        (place / f"{name}.py").write_text(text)
        found = find(name, source=place / "compiled_records.py", env={})
        assert found == (None, f"pure, the compiled code {reason}")


def test_without_a_module_trioha_is_pure(place: Path) -> None:
    assert find("kernel_that_is_not_there", source=place / "compiled_records.py", env={}) == (None, "pure")


def test_the_variable_chooses_plain_python(place: Path) -> None:
    (place / "kernel_to_choose.py").write_text(made_of(b"the source"))
    for value, is_pure in (("1", True), ("yes", True), ("0", False), ("", False)):
        _, said = find("kernel_to_choose", source=place / "compiled_records.py", env={"TRIOHA_PURE": value})
        assert said == ("pure, TRIOHA_PURE is set" if is_pure else "compiled")
