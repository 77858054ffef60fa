"""`trioha configs`: list the configuration files that come with trioha, and copy them."""

from __future__ import annotations

import json as json_module
import os
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from rich.table import Table

import trioha
from trioha.cli.console import out, print_json
from trioha.errors import ConfigError

_PACKAGE: Final = Path(trioha.__file__).parent


def configs(
    *,
    list_: Annotated[bool, Parameter(name="--list")] = False,
    copy: tuple[str, Path] | None = None,
    json: bool = False,
) -> int:
    """List the configuration files that come with trioha, or copy them.

    They are broker.conf files for pairs and groups on one machine, with comments; a dashboard for Grafana and
    alert rules for Prometheus; a unit for systemd; a Containerfile, compose files and Kubernetes manifests.

    Parameters
    ----------
    list_
        Print the name of each file, and what it is for. So does the command without options.
    copy
        The name of a file, or of a folder in the list, and the folder to copy it to, which is made if it is
        missing. Nothing is copied if a file of the same name is there.
    json
        Print one JSON object.
    """
    if copy is not None and list_:
        raise ConfigError("is given beside --list", key="--copy", hint="use one of them")
    if copy is not None:
        copied = _copied(*copy)
        if json:
            print_json({"copied": [str(path) for path in copied]})
        else:
            for path in copied:
                out().print(str(path), soft_wrap=True)
        return 0
    listed = {name: _summary(path) for name, path in config_files().items()}
    if json:
        files = [{"name": name, "summary": summary} for name, summary in listed.items()]
        print_json({"folder": str(config_folder()), "files": files})
        return 0
    table = Table("name", "for", title=str(config_folder()), title_justify="left")
    for name, summary in listed.items():
        table.add_row(name, summary)
    out().print(table)
    return 0


def config_folder() -> Path:
    """Where the files are: in the package where a wheel is installed, else beside it in the checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def config_files() -> dict[str, Path]:
    """The files by name, which is their path in the folder, with `/`. Raises ConfigError without any."""
    folder = config_folder()
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    if not files:
        raise ConfigError("has no configuration files", file=folder, hint="install trioha again")
    return dict(sorted(files.items()))


def _copied(name: str, target: Path) -> list[Path]:
    """Copies a file, or all of a folder, into `target`. Raises ConfigError."""
    files = config_files()
    name = name.strip("/")
    if name in files:
        copies = {target / files[name].name: files[name]}
    else:
        above = len(name.rpartition("/")[0])
        inside = {one: path for one, path in files.items() if one.startswith(f"{name}/")}
        copies = {target / one[above:].lstrip("/"): path for one, path in inside.items()}
    if not copies:
        raise ConfigError(f"there is no {name!r}", key="--copy", hint="trioha configs lists the names")
    for copy in copies:
        if os.path.lexists(copy):
            raise ConfigError(
                "is there already, and nothing was copied",
                file=copy,
                hint="give another folder, or delete it",
            )
    for copy, path in copies.items():
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("xb") as file:
                file.write(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=copy) from None
    return list(copies)


def _summary(path: Path) -> str:
    """The first sentence of a file: of its first comment, or of a dashboard's description."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        text = json_module.loads(text)["description"]
    else:
        comment = takewhile(str.strip, (line.removeprefix("#") for line in text.splitlines()))
        text = " ".join(line.strip() for line in comment)
    return text.partition(". ")[0].removesuffix(".")
