"""Which Pythons the fast suites run on, and in which environments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import pythons
from tests.pythons import Python, find_pythons


def interpreter(path: Path, version: tuple[int, int, int], **facts: object) -> Path:
    """A command that answers the probe as an interpreter of that version would."""
    said = {
        "implementation": "CPython",
        "version": version,
        "is_final": True,
        "executable": str(path),
        "is_virtual": False,
        "has_lock": True,
        **facts,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    path.chmod(0o755)
    return path


def test_the_newest_python_of_each_minor_version_is_found_wherever_it_is(tmp_path: Path) -> None:
    interpreter(tmp_path / "bin/python3.11", (3, 11, 4))
    pyenv = interpreter(tmp_path / ".pyenv/versions/3.11.7/bin/python3.11", (3, 11, 7))
    uv = interpreter(tmp_path / ".local/share/uv/python/cpython-3.13.1/bin/python3.13", (3, 13, 1))
    on_path = interpreter(tmp_path / "bin/python3.12", (3, 12, 9))
    found = find_pythons({"PATH": f"{tmp_path / 'bin'}:{tmp_path / 'missing'}", "HOME": str(tmp_path)})
    assert found == [
        Python((3, 11, 7), pyenv, is_virtual=False),
        Python((3, 12, 9), on_path, is_virtual=False),
        Python((3, 13, 1), uv, is_virtual=False),
    ]


def test_folders_of_pyenv_and_uv_may_be_elsewhere(tmp_path: Path) -> None:
    pyenv = interpreter(tmp_path / "a/versions/3.11.7/bin/python3.11", (3, 11, 7))
    uv = interpreter(tmp_path / "b/cpython/bin/python3.12", (3, 12, 0))
    env = {"PYENV_ROOT": str(tmp_path / "a"), "UV_PYTHON_INSTALL_DIR": str(tmp_path / "b")}
    assert [python.path for python in find_pythons(env)] == [pyenv, uv]


@pytest.mark.parametrize(
    "facts",
    [
        {"implementation": "PyPy"},
        {"is_final": False},
        {"is_virtual": True},
        {"has_lock": False},
        {"version": (3, 10, 13)},
    ],
)
def test_a_python_that_is_not_supported_is_left_out(tmp_path: Path, facts: dict[str, object]) -> None:
    version = facts.pop("version", (3, 12, 1))
    interpreter(tmp_path / "python3.12", version, **facts)  # type: ignore[arg-type]
    assert find_pythons({"PATH": str(tmp_path)}) == []


def test_a_shim_of_a_version_that_is_not_active_and_a_broken_link_are_left_out(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    (tmp_path / "python3.13").symlink_to(tmp_path / "gone")
    interpreter(tmp_path / "python3.11", (3, 11, 7))
    assert [python.minor for python in find_pythons({"PATH": str(tmp_path)})] == ["3.11"]


def test_this_python_is_one_that_can_be_used() -> None:
    found = pythons.probe(Path(sys.executable))
    assert found is not None
    assert found.version == sys.version_info[:3]


def test_the_environment_of_make_test_is_that_of_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pythons, "USUAL", tmp_path)
    assert pythons.usual_python() is None
    interpreter(tmp_path / "bin/python", (3, 12, 4), is_virtual=True)
    usual = pythons.usual_python()
    assert usual is not None
    assert usual.minor == "3.12"
    assert pythons.environment_of(usual) == tmp_path
    other = Python((3, 12, 5), tmp_path / "python3.12", is_virtual=False)
    assert pythons.environment_of(other).name == ".venv-3.12"
