"""Tables of 5.x: how groups receive (401, 402), and the state of timers (60, 61).

A slave copies them from a 5.x master, and a promoted slave gives them to 5.x slaves
(docs/protocol/ha.md#metadata-requests, docs/protocol/store.md#configuration-files).

`messageRequestMode.json` is RocketMQ's file. The state of timers stands in a file of trioha's own: RocketMQ's
`timercheck` also has positions in files that a trioha store does not have (`trioha.metadata.timer_check`).

Body of an answer to GET_TIMER_CHECK_POINT, big-endian; a broker may leave out the last three:

| offset | size | field |
|---|---|---|
| 0 | 8 | lastReadTimeMs |
| 8 | 8 | lastTimerLogFlushPos |
| 16 | 8 | lastTimerQueueOffset |
| 24 | 8 | masterTimerQueueOffset |
| 32 | 8 | stateVersion |
| 40 | 8 | timestamp |
| 48 | 8 | counter |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Final

from attrs import field, frozen

from trioha.errors import RemoteProtocolError
from trioha.metadata.data_version import DataVersion
from trioha.metadata.table import MetadataTable, TableFull, wall_clock_ms
from trioha.metadata.values import members, pop_value, signed

_POSITIONS: Final = Struct(">qqqq")
_VERSION: Final = Struct(">qqq")
CHECK_POINT_BYTES: Final = _POSITIONS.size + _VERSION.size


@frozen
class TimerCheckPoint:
    """How far a master's timer is. A slave has no use for the positions in the master's own files."""

    last_read_ms: int = 0
    """Timers that were due before this moment, ms since 1970, are delivered."""
    master_queue_offset: int = 0
    """Queue offset of the timer topic up to which messages are in the master's timer."""
    version: DataVersion = field(factory=DataVersion)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> TimerCheckPoint:
        """From the body of an answer. Raises RemoteProtocolError."""
        if len(body) not in {_POSITIONS.size, CHECK_POINT_BYTES}:
            raise RemoteProtocolError(f"a timer check point of {len(body)} bytes, not 32 or 56")
        last_read_ms, _, _, queue_offset = _POSITIONS.unpack_from(body)
        state_version = timestamp_ms = counter = 0
        if len(body) > _POSITIONS.size:
            state_version, timestamp_ms, counter = _VERSION.unpack_from(body, _POSITIONS.size)
        return cls(last_read_ms, queue_offset, DataVersion(counter, timestamp_ms, state_version))

    def encode(self) -> bytes:
        """The body of an answer; positions in own files are 0."""
        version = self.version
        return _POSITIONS.pack(self.last_read_ms, 0, 0, self.master_queue_offset) + _VERSION.pack(
            version.state_version or 0, version.timestamp_ms, version.counter
        )


class RequestModes(MetadataTable):
    """How the consumers of a topic's groups get messages: by pull, or by POP."""

    file_name = "messageRequestMode.json"

    def __init__(self, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(now_ms=now_ms)
        self.modes: Mapping[str, object] = {}
        """By topic, then group, as the JSON objects of RocketMQ."""

    def _load(self, fields: dict[str, object]) -> None:
        self.modes = members(fields.pop("messageRequestModeMap", {}), "messageRequestModeMap")

    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        modes = self.modes
        return lambda: {"messageRequestModeMap": modes}

    def find(self, topic: str, group: str) -> Mapping[str, object] | None:
        """The mode of a group in a topic, as RocketMQ's JSON object; None if none was set."""
        groups = self.modes.get(topic)
        found = groups.get(group) if isinstance(groups, Mapping) else None
        return found if isinstance(found, Mapping) else None

    def put(self, topic: str, group: str, mode: Mapping[str, object], *, modes_max: int) -> None:
        """Set the mode of a group in a topic. Raises TableFull for one more than `modes_max`."""
        groups = self.modes.get(topic)
        known = groups if isinstance(groups, Mapping) else {}
        number = sum(len(one) for one in self.modes.values() if isinstance(one, Mapping))
        if group not in known and number >= modes_max:
            raise TableFull(f"{number} request modes of groups, as many as there may be consumer groups")
        self.modes = {**self.modes, topic: {**known, group: mode}}
        self._note_change()

    def replace_all(self, modes: Mapping[str, object]) -> None:
        """Be a copy of another broker's table."""
        self.modes = modes
        self._note_change()


class TimerState(MetadataTable):
    """Check point and statistics of the timer of the 5.x master that this broker was a slave of."""

    file_name = "triohaTimer.json"

    def __init__(self, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(now_ms=now_ms)
        self.check_point: TimerCheckPoint | None = None
        """None if it was never a slave of a master with a timer."""
        self.metrics: Mapping[str, object] = {}
        """Timers by topic: RocketMQ's `timingCount`."""
        self.metrics_version = DataVersion()

    def _load(self, fields: dict[str, object]) -> None:
        check_point = None
        if "checkPoint" in fields:
            point = dict(members(fields.pop("checkPoint"), "checkPoint"))
            check_point = TimerCheckPoint(
                pop_value(point, "lastReadTimeMs", signed, 0),
                pop_value(point, "masterTimerQueueOffset", signed, 0),
                DataVersion.of(point.get("dataVersion", {})),
            )
        version = DataVersion.of(fields.pop("metricsDataVersion", {}))
        self.metrics = members(fields.pop("timingCount", {}), "timingCount")
        self.check_point, self.metrics_version = check_point, version

    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        point, metrics, version = self.check_point, self.metrics, self.metrics_version
        value: dict[str, object] = {"metricsDataVersion": version.to_json(), "timingCount": metrics}
        if point is not None:
            value["checkPoint"] = {
                "dataVersion": point.version.to_json(),
                "lastReadTimeMs": point.last_read_ms,
                "masterTimerQueueOffset": point.master_queue_offset,
            }
        return lambda: value

    def set_check_point(self, check_point: TimerCheckPoint) -> None:
        """Take the master's check point."""
        self.check_point = check_point
        self._note_change()

    def set_metrics(self, metrics: Mapping[str, object], version: DataVersion) -> None:
        """Take the master's statistics."""
        self.metrics, self.metrics_version = metrics, version
        self._note_change()
