"""How to install what an extra of trioha needs, as it was installed itself.

No package index has trioha: its name there would be somebody else's package.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any
from urllib.parse import unquote, urlsplit


def how_to_install(extra: str) -> str:
    """A command that installs an extra: from where trioha is, or the libraries themselves."""
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    try:
        found = distribution("trioha")
    except PackageNotFoundError:
        return f"in a checkout of trioha run: {pip} '.[{extra}]'"
    origin = _origin(found)
    url = str(origin.get("url", ""))
    if "dir_info" in origin and url.startswith("file://"):
        folder = unquote(urlsplit(url).path)
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return f"run: {pip} {editable}{shlex.quote(f'{folder}[{extra}]')}"
    if url:
        return f"run: {pip} {shlex.quote(f'trioha[{extra}] @ {url}')}"
    return f"run: {pip} {shlex.join(_libraries(found, extra))}"


def _origin(found: Distribution) -> dict[str, Any]:
    """What pip noted of the source of an installation; empty if it was a package index."""
    text = found.read_text("direct_url.json")
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}


def _libraries(found: Distribution, extra: str) -> list[str]:
    """The requirements of an extra, without their markers."""
    marked = f'extra == "{extra}"'
    return [
        line.partition(";")[0].strip() for line in found.requires or () if marked in line.replace("'", '"')
    ]
