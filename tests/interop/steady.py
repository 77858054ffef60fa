"""A DefaultMQProducer that goes on sending while a test stops its broker (`java/SteadyProducers.java`)."""

from __future__ import annotations

from itertools import count

from attrs import frozen

from tests.interop.java import JavaDriver

POLL_MS = 300
"""How often clients of such a test ask for routes and send heartbeats; RocketMQ's default is 30 s."""
_numbers = count(1)


@frozen
class SteadyProducer:
    """A running producer: one message at a time, as fast as it is answered but for a short pause."""

    driver: JavaDriver
    name: str

    @classmethod
    def start(
        cls, driver: JavaDriver, name_server: str, *, topic: str, prefix: str = "m", pause_ms: int = 2
    ) -> SteadyProducer:
        """Start it; bodies are `prefix` and a number."""
        name = f"steady-{next(_numbers)}"
        driver.call(
            "steadyStart",
            name=name,
            namesrv=name_server,
            topic=topic,
            prefix=prefix,
            pauseMillis=pause_ms,
            pollMillis=POLL_MS,
        )
        return cls(driver, name)

    def acknowledged(self, number: int = 0, *, within_s: float = 100.0) -> int:
        """How many messages were SEND_OK; waits for `number`, but not longer than `within_s`."""
        said = self.driver.call(
            "steadyAcknowledged",
            name=self.name,
            count=number,
            millis=int(within_s * 1000),
            timeout_s=within_s + 10,
        )
        acknowledged: int = said["acknowledged"]
        return acknowledged

    def end(self) -> dict[str, str]:
        """Stop it: what became of each message, by its body: a status or the name of an exception."""
        outcomes: dict[str, str] = self.driver.call("steadyEnd", name=self.name)["outcomes"]
        return outcomes
