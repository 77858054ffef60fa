"""The compiled loops of `remoting.kernel`, if they are there and fit: see `store.compiled`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trioha.store.compiled import load

_found, _ = load("trioha.remoting._kernel", source=Path(__file__).with_name("kernel.py"))
IS_COMPILED = _found is not None
"""Whether `kernel` is there. A name of this module, since tests run both ways in one process."""

if TYPE_CHECKING:
    from trioha.remoting import kernel as kernel  # noqa: PLC0414
else:
    kernel = _found
