"""Session folders as users name them, made absolute for processes in other working folders.

A relative path starts at the working folder of the process that resolves it. That is done once, where the
command line or an option is read (on Spark's driver); later code has absolute paths. A `file:` URI of this
machine is a path, with its percent escapes; other schemes are refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from trioha.errors import StoreError

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_FILE: Final = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>/(?!/).*)", re.IGNORECASE | re.DOTALL)
HINT: Final = "name a folder that every process can read under the same path, as in /mnt/sessions"


def absolute_path(named: str | Path) -> Path:
    """The absolute path of `named`: a path, or a `file:/path` or `file:///path` URI.

    Raises StoreError for another scheme, a URI of another machine, and a text that is not a path.
    """
    text = str(named)
    if found := _FILE.fullmatch(text):
        if found["host"] not in {None, "", "localhost"}:
            raise StoreError(f"a file of another machine ({found['host']})", path=text, hint=HINT)
        try:
            text = unquote(found["path"], errors="strict")
        except UnicodeDecodeError:
            raise StoreError("its percent escapes are not UTF-8", path=text, hint=HINT) from None
    elif text.lower().startswith("file:"):
        raise StoreError("a file: URI without an absolute path", path=text, hint="as in file:///mnt/sessions")
    elif scheme := _SCHEME.match(text):
        raise StoreError(f"{scheme[1]}: is not read, only folders are", path=text, hint=HINT)
    if not text or "\0" in text:
        raise StoreError("not a path", path=text.replace("\0", "\\0") or "''", hint=HINT)
    return Path(text).absolute()
