"""The wheel is whole, runs away from the checkout, and a node does not drag in what only others need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

from hatch_build import has_compiler, missing_requirements, module_path, sources
from tests.release.smoke import requirements_of
from trioha import __version__

ROOT = Path(__file__).parents[1]
IMPORT_ALL = """
import importlib, pkgutil, sys

allowed = set(sys.argv[1].split(","))

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if path is None and name not in allowed and name not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is not in the base install", name=name)

sys.meta_path.insert(0, Refusing())
import trioha
for module in pkgutil.walk_packages(trioha.__path__, "trioha."):
    importlib.import_module(module.name)
print(sum(name.startswith("trioha.") for name in sys.modules))
"""
"""Imports each module of trioha where only the modules are found that its argument names."""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if has_compiler() and missing_requirements():
        pytest.skip(f"nothing can be compiled without {missing_requirements()}: run make setup")
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of a fresh environment with the wheel; its third-party packages come from the tests' own."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    run(
        sys.executable, "-m", "pip", "--python", folder / "bin/python", "install",
        "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", wheel,
        cwd=folder,
    )  # fmt: skip
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path that a .pth file adds comes last, and .pth files in it are ignored: the editable trioha of the
    # checkout is not there.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


@pytest.mark.full
def test_the_wheel_holds_all_packages_and_where_spark_finds_its_sources(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "trioha",
        "trioha_monitor",
        "trioha_sessions",
        "trioha_analysis",
        "trioha_spark",
        "pyspark_rocketmq_commitlog.py",
        "pyspark_trioha_session.py",
        f"trioha-{__version__}.dist-info",
    }
    for package in ("trioha", "trioha_monitor", "trioha_sessions", "trioha_analysis", "trioha_spark"):
        assert f"{package}/py.typed" in names
        folder = next(ROOT.glob(f"{package}/")) if package == "trioha" else next(ROOT.glob(f"*/{package}/"))
        expected = {
            f"{package}/{file.relative_to(folder)}"
            for file in folder.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so"
        }
        assert expected <= set(names)


@pytest.mark.full
def test_the_wheel_holds_the_kernels_for_this_python_where_a_compiler_is(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]
    expected = [str(module_path(source).relative_to(ROOT)) for source in sources()] if has_compiler() else []
    assert sorted(modules) == sorted(expected)
    assert wheel.name.endswith("-py3-none-any.whl") is not has_compiler()


@pytest.mark.full
def test_a_pure_wheel_is_one_for_all_platforms(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT, TRIOHA_PURE="1")
    (built,) = tmp_path.glob("*.whl")
    assert built.name == f"trioha-{__version__}-py3-none-any.whl"
    with ZipFile(built) as archive:
        assert "trioha/store/compiled_records.py" in archive.namelist()
        assert not [name for name in archive.namelist() if name.endswith((".so", ".pyd"))]


@pytest.mark.full
def test_the_wheel_carries_its_licence_and_its_extras(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        folder = f"trioha-{__version__}.dist-info"
        assert "Apache License" in archive.read(f"{folder}/licenses/LICENSE").decode()
        metadata = archive.read(f"{folder}/METADATA").decode()
    assert "License-Expression: Apache-2.0\n" in metadata
    for extra in ("monitor", "spark", "all"):
        assert f"Provides-Extra: {extra}\n" in metadata


def test_the_classifiers_name_the_oldest_python_that_is_required_and_those_after_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: 3\.(\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    minors = [int(minor) for minor in named]
    assert project["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[0] + len(minors)))
    assert (3, minors[0]) == (3, 11)


def test_an_editable_install_has_no_folder_that_hides_the_package(tmp_path: Path) -> None:
    build = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"
    run(sys.executable, "-c", build, tmp_path, cwd=ROOT, TRIOHA_PURE="1")
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as archive:
        assert [name for name in archive.namelist() if name.startswith("trioha/")] == []


@pytest.mark.full
def test_the_installed_command_has_the_configuration_files(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(run(installed / "trioha", "configs", "--list", "--json", cwd=tmp_path))
    assert Path(listed["folder"]).is_relative_to(installed.parent)
    expected = {
        path.relative_to(ROOT / "configs"): path for path in ROOT.glob("configs/**/*") if path.is_file()
    }
    assert sorted(Path(one["name"]) for one in listed["files"]) == sorted(expected)
    for name, path in expected.items():
        run(installed / "trioha", "configs", "--copy", str(name), name.parent, cwd=tmp_path)
        assert (tmp_path / name).read_bytes() == path.read_bytes()


@pytest.mark.full
def test_the_installed_command_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    kernel = "compiled" if has_compiler() else "pure"
    version = run(installed / "trioha", "--version", cwd=tmp_path)
    assert version.startswith(f"{__version__} (kernel: {kernel}")
    assert run(installed / "trioha", "node", "--help", cwd=tmp_path).startswith("Usage: trioha node")
    packages = ("trioha", "trioha_monitor", "trioha_sessions", "trioha_analysis", "trioha_spark")
    where = f"import {', '.join(packages)}; print({', '.join(f'{name}.__file__' for name in packages)})"
    for file in run(installed / "python", "-c", where, cwd=tmp_path).split():
        assert Path(file).is_relative_to(installed.parent)


@pytest.mark.full
def test_every_module_of_trioha_is_imported_without_an_extra(installed: Path, tmp_path: Path) -> None:
    (metadata,) = installed.parent.glob("lib/python*/site-packages/trioha-*.dist-info")
    there = installed_with(Distribution.at(metadata))
    assert "trio" in there
    assert there.isdisjoint(
        {"jinja2", "numpy", "obstore", "pandas", "plotly", "pyarrow", "pyspark", "textual"}
    )
    tops = [
        top for top, names in packages_distributions().items() if there & {canonical(name) for name in names}
    ]
    imported = run(installed / "python", "-c", IMPORT_ALL, ",".join(["trioha", *tops]), cwd=tmp_path)
    modules = [file for file in (ROOT / "trioha").rglob("*.py") if file.parent != ROOT / "trioha"]
    assert int(imported) >= len(modules)


def installed_with(trioha: Distribution) -> set[str]:
    """The distributions that are installed with trioha where no extra is asked for."""
    found: set[str] = set()
    waiting = [trioha]
    while waiting:
        for requirement in map(Requirement, waiting.pop().requires or ()):
            name = canonical(requirement.name)
            is_required = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_required and name not in found:
                found.add(name)
                waiting.append(distribution(name))
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_pins_every_dependency_by_hash_and_names_no_host() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    blocks = [block for block in lock.split("\n") if block and not block.startswith((" ", "#"))]
    assert all("==" in block for block in blocks)
    assert lock.count("--hash=sha256:") >= len(blocks)
    for package in ("hatchling", "librt", "mypy", "pyspark", "pytest", "setuptools", "textual", "trio"):
        assert any(block.startswith(f"{package}==") for block in blocks), package


def test_an_sdist_has_all_that_the_tests_and_the_pages_need(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("trioha/cli/__init__.py", "tests/conftest.py", "docs/README.md", "Makefile", "uv.lock"):
        assert name in names
    assert not [name for name in names if name.endswith((".so", ".pyc")) or "__pycache__" in name]


def test_the_metadata_of_a_wheel_is_what_an_index_accepts(tmp_path: Path) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT, TRIOHA_PURE="1")
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as archive:
        raw = archive.read(f"trioha-{__version__}.dist-info/METADATA")
    # Raises for a field that the specification of metadata does not know, or that is wrong.
    found = Metadata.from_email(raw)
    assert (found.license_expression, found.description_content_type) == ("Apache-2.0", "text/markdown")
    assert len(found.keywords or ()) >= 5
    wanted = requirements_of(raw, ["archive"])
    assert "obstore>=0.8" in wanted
    assert not [each for each in wanted if each.startswith(("textual", "pyspark"))]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_make_dist_makes_files_that_can_be_installed(tmp_path: Path) -> None:
    """For the Python of this run; the stage `dist` of `make nightly` does it for all that are here."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.release", "--quick", "--dist", tmp_path / "dist"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sums = (tmp_path / "dist/SHA256SUMS").read_text()
    assert f"trioha-{__version__}.tar.gz" in sums
    assert f"trioha-{__version__}-py3-none-any.whl" in sums
