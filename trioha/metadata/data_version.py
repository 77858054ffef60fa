"""DataVersion: which of two copies of a metadata table is newer.

See docs/protocol/store.md#configuration-files, docs/protocol/remoting.md#json-of-fastjson.
"""

from __future__ import annotations

from attrs import evolve, field, frozen

from trioha.metadata.values import members, natural, pop_value
from trioha.remoting.codes import Version


@frozen
class DataVersion:
    """Counts the changes of a table. Two are equal if all fields are."""

    counter: int = 0
    timestamp_ms: int = 0
    """Wall clock of the last change, ms since 1970."""
    state_version: int | None = field(default=None, eq=lambda state: state or 0)
    """Epoch of the master in a controller's group, 5.x only; None where the table came from a 4.9 broker,
    which does not write it."""

    @classmethod
    def of(cls, value: object) -> DataVersion:
        """From its JSON value. Raises ValueError."""
        fields = dict(members(value, "dataVersion"))
        return cls(
            pop_value(fields, "counter", natural, 0),
            pop_value(fields, "timestamp", natural, 0),
            pop_value(fields, "stateVersion", natural, -1) if "stateVersion" in fields else None,
        )

    def to_json(self) -> dict[str, object]:
        """Its JSON value, with the fields that its version of RocketMQ has."""
        state = {} if self.state_version is None else {"stateVersion": self.state_version}
        return {"counter": self.counter, **state, "timestamp": self.timestamp_ms}

    def as_known_to(self, version: int) -> DataVersion:
        """As a peer of `version` knows it."""
        return evolve(self, state_version=None if version < Version.V5_0_0 else self.state_version or 0)

    def following(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return evolve(self, counter=self.counter + 1, timestamp_ms=now_ms)
