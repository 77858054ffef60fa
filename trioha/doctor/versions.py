"""The program and version of a broker: what RocketMQ 4.9, RocketMQ 5.x and trioha do differently.

The facts for each version are those of docs/protocol/ha.md#settings, docs/protocol/ha.md#metadata-schedule,
docs/protocol/ha.md#defects.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from attrs import frozen

from trioha.config.rocketmq_keys import KEYS_OF_4_9, ROCKETMQ_KEYS, SINCE_5_4, SINCE_5_5

_ROCKETMQ: Final = re.compile(r"V?([0-9]{1,4})[._]([0-9]{1,4})(?:[._]([0-9]{1,4}))?(?:[-_].*)?")
_TRIOHA: Final = "trioha"
_RENAMED_IN_5: Final = {"haSlaveFallbehindMax": "haMaxGapNotInSync", "isEnableBatchPush": "enableBatchPush"}
_UNKNOWN_TO_5: Final = frozenset(
    (
        "commercialBigCount", "commercialEnable", "commercialTimerCount", "commercialTransCount",
        "filterServerNums", "maxDelayTime",
    )
)  # fmt: skip


@frozen
class BrokerVersion:
    """Program and version. Neither is known before a broker or its user names it."""

    text: str = ""
    """As the broker reports it, `V5_3_3` or `trioha-0.1.0`; empty if it is not known."""
    numbers: tuple[int, ...] = ()
    """`(5, 3, 3)` of a RocketMQ broker; empty for trioha and where it is not known."""
    is_trioha: bool = False

    @classmethod
    def of(cls, text: str | None) -> BrokerVersion:
        """The version in a broker's `brokerVersionDesc`, or as a user writes it: 4.9.7, 5.5.0, trioha."""
        if not text:
            return UNKNOWN_VERSION
        if text.lower().startswith(_TRIOHA):
            return cls(text, is_trioha=True)
        found = _ROCKETMQ.fullmatch(text.strip())
        if found is None:
            return cls(text)
        return cls(text, tuple(int(number) for number in found.groups() if number is not None))

    @property
    def is_rocketmq(self) -> bool:
        """Whether it is known to be RocketMQ."""
        return bool(self.numbers)

    @property
    def is_4(self) -> bool:
        """Whether it is RocketMQ 4.x."""
        return self.numbers[:1] == (4,)

    @property
    def is_5(self) -> bool:
        """Whether it is RocketMQ 5.x."""
        return self.numbers[:1] == (5,)

    @property
    def shown(self) -> str:
        """For texts: `RocketMQ 5.3.3`, `trioha-0.1.0`, `an unknown version`."""
        if self.numbers:
            return "RocketMQ " + ".".join(map(str, self.numbers))
        return self.text or "an unknown version"

    def unused_keys(self, keys: Collection[str]) -> dict[str, str]:
        """Those of RocketMQ's `keys` that a RocketMQ broker of this version ignores, each with the reason.

        None of a version that is not known, or of trioha, which warns of them itself.
        """
        if not self.numbers:
            return {}
        return {key: reason for key in keys if (reason := self._reason_to_ignore(key))}

    def _reason_to_ignore(self, key: str) -> str | None:
        if key not in ROCKETMQ_KEYS or key.startswith("tls."):
            return None
        if self.is_4:
            return None if key in KEYS_OF_4_9 else "5.x has it, 4.9 does not"
        if key in _RENAMED_IN_5:
            return f"5.x calls it {_RENAMED_IN_5[key]}"
        if key in _UNKNOWN_TO_5:
            return "4.9 has it, 5.x does not"
        if self.numbers < (5, 5) and key in SINCE_5_5:
            return "new in 5.5"
        if self.numbers < (5, 4) and key in SINCE_5_4:
            return "new in 5.4"
        return None


UNKNOWN_VERSION: Final = BrokerVersion()
