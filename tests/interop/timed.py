"""A DefaultMQProducer that goes on sending while a test stops its broker (`java/TimedProducers.java`)."""

from __future__ import annotations

import time
from itertools import count

from attrs import frozen

from tests.interop.java import JavaDriver

SEND_OK = "SEND_OK"
_numbers = count(1)


@frozen
class Sent:
    """What became of one message."""

    body: str
    outcome: str
    """A status, or the name of an exception."""
    ended_ns: int
    """On the clock of `time.monotonic_ns`, when the producer had its answer."""
    broker: str
    """`host:port` of the broker that stored it; empty for an exception."""
    queue_id: int
    """Of the queue that it was stored in; -1 for an exception."""
    queue_offset: int

    @property
    def is_ok(self) -> bool:
        """Whether it was SEND_OK."""
        return self.outcome == SEND_OK


@frozen
class TimedProducer:
    """A running producer: one message at a time, as fast as it is answered but for a short pause."""

    driver: JavaDriver
    name: str

    @classmethod
    def start(
        cls, driver: JavaDriver, name_server: str, *, topic: str, poll_ms: int = 300, pause_ms: int = 2
    ) -> TimedProducer:
        """Start it; it asks for routes each `poll_ms`, and bodies are its name and a number."""
        name = f"timed-{next(_numbers)}"
        before_ns = time.monotonic_ns()
        said = driver.call(
            "timedStart",
            name=name,
            namesrv=name_server,
            topic=topic,
            prefix=f"{name}-",
            pauseMillis=pause_ms,
            pollMillis=poll_ms,
        )
        assert before_ns <= said["nanos"] <= time.monotonic_ns(), "Java's clock is another one"
        return cls(driver, name)

    def accepted(self, broker: str = "", number: int = 0, *, within_s: float = 100.0) -> int:
        """How many messages that broker, or any, accepted; waits for `number` at most `within_s`."""
        accepted: int = self.driver.counted(
            "timedAccepted", "accepted", number, within_s=within_s, name=self.name, broker=broker
        )
        return accepted

    def end(self) -> list[Sent]:
        """Stop it: what became of all messages, in their order; nothing if it was stopped before."""
        said = self.driver.call("timedEnd", name=self.name)["sent"]
        return [Sent(*one) for one in said]
