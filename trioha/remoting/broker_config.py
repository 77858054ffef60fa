"""The answer to GET_BROKER_CONFIG: `key=value` lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioha.errors import RemoteProtocolError

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""Of an answer to GET_BROKER_CONFIG: those of RocketMQ's brokers have some 15 KB."""


def check_broker_config(body: bytes | memoryview) -> None:
    """Raises RemoteProtocolError for an answer to GET_BROKER_CONFIG that is too long to be one."""
    if len(body) > CONFIG_BYTES_MAX:
        raise RemoteProtocolError(
            f"the settings of a broker in {len(body)} bytes; at most {CONFIG_BYTES_MAX} are read"
        )


def parse_broker_config(body: bytes | memoryview) -> Mapping[str, str]:
    """The `key=value` lines in an answer to GET_BROKER_CONFIG. Raises as `check_broker_config`."""
    check_broker_config(body)
    lines = str(body, "utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}
