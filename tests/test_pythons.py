"""Which Pythons the fast suites run on, and what is said about them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import pythons
from tests.pythons import Python, Result, find_pythons


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


@pytest.mark.parametrize(("passed", "code"), [([True, True], 0), ([True, False], 1), ([], 1)])
def test_there_is_one_line_for_each_python_and_one_that_failed_fails_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], passed: list[bool], code: int
) -> None:
    found = [Python((3, 11 + number, 1), Path("python"), is_virtual=False) for number in range(len(passed))]
    monkeypatch.setattr(pythons, "find_pythons", lambda _env: found)
    monkeypatch.setattr(
        pythons,
        "run",
        lambda python, _arguments, *, is_pure: Result(
            python,
            passed=passed[python.version[1] - 11],
            summary="7 of them",
            seconds=5.2,
            kernel="pure" if is_pure else "compiled",
        ),
    )
    monkeypatch.setattr(pythons, "choose_pure", lambda found: found[-1] if found else None)
    monkeypatch.setattr(pythons.resource, "setrlimit", lambda _which, _limits: None)
    assert pythons.main([]) == code
    said = capsys.readouterr().out.splitlines()
    assert said[len(passed) + 1 :] == [
        f"Python 3.{11 + number}.1   {'passed' if held else 'FAILED'}  7 of them "
        f"(5 s, kernel: {'pure' if number == len(passed) - 1 else 'compiled'})"
        for number, held in enumerate(passed)
    ]


def test_the_python_of_make_test_is_the_one_that_runs_without_the_compiled_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [Python((3, minor, 1), Path("python"), is_virtual=False) for minor in (11, 12, 13)]
    monkeypatch.setattr(pythons, "USUAL", tmp_path)
    assert pythons.choose_pure([]) is None
    assert pythons.choose_pure(found) is found[0]
    interpreter(tmp_path / "bin/python", (3, 12, 4))
    assert pythons.choose_pure(found) is found[1]
