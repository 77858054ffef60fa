"""Functions on columns of `rocketmq-commitlog`, for `select` and `where`.

`decode_body("body", "sys_flag")`: the decompressed body; null if it is invalid.
`parse_properties("properties")`: a map, parsed as by a broker: `parse_properties("properties")["TAGS"]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pandas as pd
from pyspark.sql import Column
from pyspark.sql.pandas import functions
from pyspark.sql.types import BinaryType, MapType, StringType

from trioha.store import message_bodies
from trioha.store.message_properties import parse_properties as parse

BODY_BYTES_MAX: Final = 256 << 20
"""Limit of a decompressed body; a longer one is null."""


def _decode(body: pd.Series, sys_flag: pd.Series) -> pd.Series:
    plain = [
        None
        if each is None
        else message_bodies.decode_body(bytes(each), int(flags), body_bytes_max=BODY_BYTES_MAX)
        for each, flags in zip(body, sys_flag, strict=True)
    ]
    return pd.Series(plain, dtype=object)


def _parse(properties: pd.Series) -> pd.Series:
    return pd.Series([None if each is None else parse(bytes(each)) for each in properties], dtype=object)


# Its overloads lack maps.
_pandas_udf: Any = functions.pandas_udf

decode_body: Final[Callable[..., Column]] = _pandas_udf(_decode, BinaryType())
parse_properties: Final[Callable[..., Column]] = _pandas_udf(_parse, MapType(StringType(), StringType()))
