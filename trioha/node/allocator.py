"""Large blocks of memory go back to the system when they are freed.

glibc takes blocks of up to 32 MiB from its heap once such a block was freed, and a heap shrinks at its end
only: after some frames of 16 MiB a node would hold their memory for good.
"""

from __future__ import annotations

import ctypes
from typing import Final

LARGE_BYTES: Final = 1 << 20
"""More than a node uses all the time (1 MiB to receive from a master, 256 KiB for an answer)."""
_M_MMAP_THRESHOLD: Final = -3


def give_back_large_blocks() -> bool:
    """Have the C library take each block of more than `LARGE_BYTES` from the system, and give it back.

    False where the C library decides that by itself (musl, macOS).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES) == 1
