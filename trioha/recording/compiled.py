"""The compiled loops of `recording.kernel`, if they are there and fit: see `store.compiled`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trioha.store import compiled as store_compiled

_found, _description = store_compiled.load(
    "trioha.recording._kernel", source=Path(__file__).with_name("kernel.py")
)
DESCRIPTION: Final = _description
"""As that of the store, of this module alone."""
IS_COMPILED = _found is not None and store_compiled.IS_COMPILED
"""Whether `kernel` is there, and the kernels of the store. A name of this module, since tests run both ways
in one process."""

if TYPE_CHECKING:
    from trioha.recording import kernel as kernel  # noqa: PLC0414
else:
    kernel = _found
