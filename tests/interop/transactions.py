"""RocketMQ's own TransactionMQProducer in a JVM (`java/Transactions.java`)."""

from __future__ import annotations

from itertools import count
from typing import Any

from attrs import frozen

from tests.interop.java import JavaDriver

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
OPS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
"""The topic of decisions."""
_numbers = count(1)


@frozen
class TransactionProducer:
    """A running TransactionMQProducer."""

    driver: JavaDriver
    name: str

    @classmethod
    def start(
        cls, driver: JavaDriver, name_server: str, *, group: str = "transactions"
    ) -> TransactionProducer:
        """Start it."""
        name = f"transactions-{next(_numbers)}"
        driver.call("transactionStart", name=name, namesrv=name_server, group=group)
        return cls(driver, name)

    def send(
        self,
        number: int,
        *,
        topic: str,
        prefix: str,
        decision: str,
        decision_of_check: str = "UNKNOW",
        immunity_s: int | None = None,
    ) -> list[dict[str, Any]]:
        """Send messages in transactions; a decision is COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW.

        `decision` comes at once, `decision_of_check` when the broker asks. Says for each message: status,
        state, queueId, msgId, transactionId.
        """
        fields: dict[str, object] = {} if immunity_s is None else {"immunity": str(immunity_s)}
        said = self.driver.call(
            "transactionSend",
            name=self.name,
            count=number,
            topic=topic,
            prefix=prefix,
            decision=decision,
            decisionOfCheck=decision_of_check,
            **fields,
        )
        results: list[dict[str, Any]] = said["results"]
        return results

    def checks(self, number: int, *, within_s: float = 100.0) -> list[dict[str, Any]]:
        """The checks that the broker has made, in order; waits for `number`, but not longer than `within_s`.

        Each with body, topic, queueId, times and transactionId.
        """
        checks: list[dict[str, Any]] = self.driver.counted(
            "transactionChecks", "checks", number, within_s=within_s, name=self.name
        )
        return checks

    def end(self) -> None:
        """Shut it down."""
        self.driver.call("transactionEnd", name=self.name)
