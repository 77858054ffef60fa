"""The compiled loops of `remoting.kernel`, if they are there and fit: see `store.compiled`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from trioha.recording import compiled as recording_compiled
from trioha.store import compiled as store_compiled

_found, _description = store_compiled.load(
    "trioha.remoting._kernel", source=Path(__file__).with_name("kernel.py")
)
IS_COMPILED = _found is not None and store_compiled.IS_COMPILED
"""Whether `kernel` is there, and that of the store. A name of this module, since tests run both ways in one
process."""
DESCRIPTION: Final = next(
    (
        description
        for description in (store_compiled.DESCRIPTION, _description, recording_compiled.DESCRIPTION)
        if description != store_compiled.COMPILED
    ),
    store_compiled.COMPILED,
)
"""As that of the store, of all compiled code."""

if TYPE_CHECKING:
    from trioha.remoting import kernel as kernel  # noqa: PLC0414
else:
    kernel = _found
