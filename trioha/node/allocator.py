"""Large blocks of memory go back to the system when they are freed, and only these.

glibc takes blocks of up to 32 MiB from its heap once such a block was freed, and a heap shrinks at its end
only: after some frames of 16 MiB a node would hold their memory for good. With a limit of ours glibc adapts
none by itself any more, so it is told, too, how much of the heap's free end stays: memory that went back to
the system comes again page by page, cleared.
"""

from __future__ import annotations

import ctypes
from typing import Final

LARGE_BYTES: Final = (1 << 20) + (1 << 16)
"""More than a node uses all the time (1 MiB for a frame between master and slave, 256 KiB for an answer)."""
KEPT_BYTES: Final = 4 << 20
"""So much of the heap's free end stays. glibc's own 128 KiB are less than one read of the log."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def give_back_large_blocks() -> bool:
    """Have the C library give each block of more than `LARGE_BYTES` back to the system, and keep the others.

    False where the C library decides that by itself (musl, macOS).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(option, limit_bytes) == 1
        for option, limit_bytes in ((_M_MMAP_THRESHOLD, LARGE_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    )
