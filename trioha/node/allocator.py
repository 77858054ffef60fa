"""Large blocks of memory go back to the system when they are freed, and only these.

glibc takes blocks of up to 32 MiB from its heap once such a block was freed, and a heap shrinks at its end
only: after some frames of 16 MiB a node would hold their memory for good. So the size from which a block
comes from the system is set here. That also stops glibc from raising the other limit, how much free memory
the heap keeps at its end, so that limit is set, too: memory that was given back costs a page fault and a
cleared page each time it is used again.
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
