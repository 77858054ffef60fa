"""NumPy types of a record's fixed fields, and reading them at many positions at once.

See docs/protocol/store.md#message-record.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from trioha.store.record_layout import BORN_HOST_V6, HOSTS_V6, STORE_HOST_V6

Bytes = NDArray[np.uint8]
Indexes = NDArray[np.int64]


def head_type(*, born_bytes: int, store_bytes: int) -> np.dtype[np.void]:
    """The fields before the body, for hosts of 4 or 16 address bytes."""
    return np.dtype(
        [
            ("total_size", ">i4"),
            ("magic", ">u4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("physical_offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_timestamp", ">i8"),
            ("born_address", "u1", born_bytes),
            ("born_port", ">i4"),
            ("store_timestamp", ">i8"),
            ("store_address", "u1", store_bytes),
            ("store_port", ">i4"),
            ("reconsume_times", ">i4"),
            ("prepared_transaction_offset", ">i8"),
            ("body_bytes", ">i4"),
        ]
    )


HEAD_V4: Final = head_type(born_bytes=4, store_bytes=4)
HEADS: Final = {
    flags: head_type(
        born_bytes=16 if flags & BORN_HOST_V6 else 4, store_bytes=16 if flags & STORE_HOST_V6 else 4
    )
    for flags in (0, BORN_HOST_V6, STORE_HOST_V6, HOSTS_V6)
}
"""By the IPv6 bits of sysFlag."""


def gather(data: Bytes, at: Indexes, type_: np.dtype[np.void]) -> NDArray[np.void]:
    """Copies of a packed structure at the indexes `at`, shape (n,), all inside `data`."""
    places = max(0, len(data) - type_.itemsize + 1)
    return np.ndarray(places, type_, data.data, strides=(1,))[at]


def gather_i16(data: Bytes, at: Indexes) -> Indexes:
    """The big-endian 16-bit numbers at the indexes `at`, shape (n,)."""
    high = data[at].astype(np.int8).astype(np.int64)
    return (high << 8) | data[at + 1]
