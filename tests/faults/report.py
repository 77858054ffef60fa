"""How a run went."""

from __future__ import annotations

from typing import Any

import cattrs
from attrs import asdict, field, frozen


@frozen
class Report:
    """How a run went."""

    seed: int
    folder: str
    violations: list[str]
    """Empty if all invariants held."""
    seconds: float
    end_offset: int = -1
    """Where all logs ended; -1 if the run did not come so far."""
    promises: int = 0
    """Messages that were answered PUT_OK."""
    kills: int = 0
    starts: int = 0
    metadata_copies: int = 0
    """Copies of consumer offsets that slaves have received."""
    offset_checks: int = 0
    """How often the offsets of a slave were checked when the node that it copies from had ended."""
    failed_syncs: int = 0
    """Nodes that ended because a sync failed."""
    hostile_frames: int = 0
    """Hostile frames that were answered, passed over or closed for."""
    popped: int = 0
    """Messages that were popped."""
    given_again: int = 0
    """Of these, those that had been popped before."""
    timers: int = 0
    """Timers that were answered PUT_OK."""
    statuses: dict[str, int] = field(factory=dict)
    faults: list[str] = field(factory=list)
    """The faults of the plan, by kind."""
    archive: str | None = None
    """Where the archive was that was restored and compared: file or s3."""
    controller: str | None = None
    """Of a group in controller mode: a version of RocketMQ, or `scripted`."""
    elections: int = 0
    """Masters that the controller named, one after the other."""
    deaths: int = 0
    """Nodes that died at a call to their disk in a cut or in a role change."""
    passed_over: int = 0
    """Faults that found nothing to break."""

    @property
    def ok(self) -> bool:
        return not self.violations

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Report:
        return cattrs.structure({key: value for key, value in document.items() if key != "ok"}, cls)
