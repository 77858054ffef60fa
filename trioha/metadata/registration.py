"""The body of REGISTER_BROKER: a broker's topics with their DataVersion.

See docs/protocol/remoting.md#registration.

The body of REGISTER_BROKER comes in two forms. As JSON:

```
{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":DV,"topicConfigTable":{T:TopicConfig}}}
```

A broker of version 5 adds `mappingDataVersion`, `topicQueueMappingDetailMap` and `topicQueueMappingInfoMap`
to the wrapper. One older than 3.0.11 sends the wrapper alone. Compressed, it is one zlib stream of:

| bytes | meaning |
|---|---|
| 4 + n | length and JSON of the DataVersion |
| 4 | number of topics |
| each 4 + n | length and text: `name read write perm filterType`, from 5.0 on with `attributes` as JSON |
| 4 + n | length and JSON of the filter servers |
| 4, each 4 + n | from 5.0 on: number of queue mappings; length and JSON of each |

All integers are big-endian. `bodyCrc32` of the request's header is over the bytes as they are sent.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from attrs import Factory, evolve, frozen

from trioha.errors import RemoteProtocolError
from trioha.metadata.data_version import DataVersion
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import Version
from trioha.remoting.fastjson import JsonLimits, as_text, parse_json, shown

TOPICS_MAX: Final = 100_000
"""Topics of one registration."""
INFLATED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of a compressed body: 300 bytes for each of `TOPICS_MAX`."""
NAME_CHARS_MAX: Final = 255
"""Of a topic, broker, cluster or address. RocketMQ's own limit for topics is 127."""

_JSON_LIMITS: Final = JsonLimits(containers_max=4 * TOPICS_MAX, dialect_chars_max=1024 * 1024)
_I32: Final = Struct(">i")
_ZLIB_FIRST_BYTE: Final = 0x78
_WRAPPER: Final = "topicConfigSerializeWrapper"


@frozen
class Registration:
    """The body of REGISTER_BROKER."""

    data_version: DataVersion = Factory(DataVersion)
    """Of the broker's whole table, also where only some topics are sent."""
    topics: Mapping[str, TopicConfig] = Factory(dict)
    """All of them, or those that have changed."""
    filter_servers: tuple[str, ...] = ()
    mappings: Mapping[str, Mapping[Any, Any]] = Factory(dict)
    """TopicQueueMappingInfo of static topics by topic, as the JSON objects that they came as."""


def body_crc(body: bytes | memoryview) -> int:
    """The value of `bodyCrc32` in the header (docs/protocol/remoting.md#registration)."""
    return zlib.crc32(body) & 0x7FFFFFFF


def parse_data_version(value: object) -> DataVersion:
    """The DataVersion of a JSON value; a field that is missing is 0. Raises RemoteProtocolError."""
    try:
        return DataVersion.of(_object(value, "a DataVersion"))
    except ValueError as error:
        raise RemoteProtocolError(f"a DataVersion: {error}") from None


def _topic_config(name: str, value: object) -> TopicConfig:
    """The topic of a JSON object or of a compressed body's texts, without members that are not known."""
    try:
        topic = TopicConfig.of(_object(value, f"the configuration of topic {shown(name)}"))
    except ValueError as error:
        raise RemoteProtocolError(f"the configuration of topic {shown(name)}: {error}") from None
    return evolve(topic, name=name, filter_type=topic.filter_type[:NAME_CHARS_MAX], other={})


def encode_registration(
    topics: Mapping[str, Mapping[str, object]], *, data_version: Mapping[str, object]
) -> bytes:
    """The JSON body of REGISTER_BROKER, as a broker of RocketMQ 4 sends it, of JSON objects."""
    wrapper = {"dataVersion": data_version, "topicConfigTable": topics}
    body = {"filterServerList": [], _WRAPPER: wrapper}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def parse_registration(body: bytes | memoryview, *, compressed: bool, version: int) -> Registration:
    """The body of REGISTER_BROKER as the peer of `version` sent it.

    A body that is a zlib stream is read as one, `compressed` or not: brokers of 5.3.3 compress it and deny
    it. Raises RemoteProtocolError for a body that makes no sense or exceeds a limit of this module.
    """
    if not body:
        return Registration()
    if compressed or body[0] == _ZLIB_FIRST_BYTE:
        return _parse_compressed(_inflate(body), version=version)
    fields = _object(parse_json(body, limits=_JSON_LIMITS), "the body of REGISTER_BROKER")
    if version < Version.V3_0_11 and _WRAPPER not in fields:
        fields = {_WRAPPER: fields}
    wrapper = _object(fields.get(_WRAPPER, {}), _WRAPPER)
    table = _object(wrapper.get("topicConfigTable", {}), "topicConfigTable")
    mappings = _object(wrapper.get("topicQueueMappingInfoMap", {}), "topicQueueMappingInfoMap")
    _check_count(len(table))
    _check_count(len(mappings))
    return Registration(
        parse_data_version(wrapper.get("dataVersion")),
        {name: _topic_config(name, value) for name, value in _by_name(table)},
        _texts(fields.get("filterServerList")),
        {name: _object(value, "a queue mapping") for name, value in _by_name(mappings)},
    )


def _parse_compressed(data: bytes, *, version: int) -> Registration:
    reader = _Reader(data)
    data_version = parse_data_version(parse_json(reader.text()))
    topics = dict(_parse_topic_text(reader.text()) for _ in range(reader.count()))
    filter_servers = _texts(parse_json(reader.text()))
    mappings = {}
    if version >= Version.V5_0_0 and not reader.is_at_end:
        for _ in range(reader.count()):
            mapping = _object(parse_json(reader.text(), limits=_JSON_LIMITS), "a queue mapping")
            mappings[check_name(as_text(mapping.get("topic", "")), "topic")] = mapping
    return Registration(data_version, topics, filter_servers, mappings)


def _parse_topic_text(text: str) -> tuple[str, TopicConfig]:
    parts = text.split(" ", 5)
    if len(parts) < 5:
        raise RemoteProtocolError(f"a topic's text has {len(parts)} of 5 fields: {shown(text)}")
    name, read, write, perm, filter_type = parts[:5]
    fields = {"readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicFilterType": filter_type}
    return check_name(name, "topic"), _topic_config(name, fields)


def _inflate(body: bytes | memoryview) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"the compressed body is damaged: {error}") from error
    if not inflater.eof:
        raise RemoteProtocolError(
            f"the compressed body is larger than {INFLATED_BYTES_MAX} bytes, or has no end"
        )
    return data


class _Reader:
    """Integers and texts of a compressed body, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def count(self) -> int:
        """A number of elements that follow."""
        return _check_count(self._integer())

    def text(self) -> str:
        size = self._integer()
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise RemoteProtocolError(f"a text of {size} bytes in a body of {len(self._data)}")
        text = str(self._data[self._at : end], "utf-8", "replace")
        self._at = end
        return text

    def _integer(self) -> int:
        if self._at + _I32.size > len(self._data):
            raise RemoteProtocolError(f"the compressed body ends after {len(self._data)} bytes")
        (number,) = _I32.unpack_from(self._data, self._at)
        self._at += _I32.size
        return int(number)


def check_name(name: str, what: str) -> str:
    """`name`, if it can be one of topic, broker, cluster or address. Raises RemoteProtocolError."""
    if not name:
        raise RemoteProtocolError(f"the name of the {what} is empty")
    if len(name) > NAME_CHARS_MAX:
        raise RemoteProtocolError(
            f"the name of the {what} has {len(name)} characters, more than {NAME_CHARS_MAX}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RemoteProtocolError(f"the name of the {what} is no text: {shown(name)}") from None
    return name


def _check_count(number: int) -> int:
    if not 0 <= number <= TOPICS_MAX:
        raise RemoteProtocolError(f"{number} topics in one registration, not 0 to {TOPICS_MAX}")
    return number


def _by_name(table: Mapping[Any, Any]) -> list[tuple[str, object]]:
    return [(check_name(as_text(name), "topic"), value) for name, value in table.items()]


def _object(value: object, what: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what} is {shown(value)}, not an object")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > NAME_CHARS_MAX:
        raise RemoteProtocolError(f"the filter servers are {shown(value)}, not a short array")
    return tuple(check_name(as_text(item), "filter server") for item in value)
