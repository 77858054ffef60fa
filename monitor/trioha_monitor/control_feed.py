"""Controller mode of a RocketMQ broker, asked for beside its status.

A trioha node reports it with its status. For a RocketMQ broker the broker and its controllers are asked
(`trioha.controller.group_status`): every `EVERY_S`, and at once when its status has another role than before.
Until the answer has come the last one is shown, with its role. If no controller answers, the broker is shown
without master, epoch and set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio
from attrs import evolve

from trioha.broker_status import BrokerStatus, ControlStatus
from trioha.controller.group_status import Connect, fetch_control, is_controlled
from trioha.remoting.client import RemotingClient

EVERY_S: Final = 5.0
"""Between two questions to controllers, as RocketMQ's brokers ask them."""
AGAIN_S: Final = 0.5
"""Between two questions, at least, while the broker's role is not that of the last answer."""
FIRST_S: Final = 1.0
"""How long the first status of a broker waits for its controllers."""


class ControlFeed:
    """Controller mode of the broker at one connection."""

    def __init__(self, client: RemotingClient, *, connect: Connect, timeout_s: float) -> None:
        """`timeout_s` is for each request."""
        self._client, self._connect, self._timeout_s = client, connect, timeout_s
        self._control: ControlStatus | None = None
        self._asked_s = 0.0
        self._asking: tuple[BrokerStatus, Mapping[str, str]] | None = None
        """What the next question is about."""
        self._wanted = trio.Event()
        self._answered = trio.Event()

    async def run(self) -> None:
        """Ask when it is time, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            assert self._asking is not None, "a question is about a status"
            status, config = self._asking
            self._asked_s = trio.current_time()
            self._control = await fetch_control(
                self._client, status, config, connect=self._connect, timeout_s=self._timeout_s
            )
            self._answered.set()

    async def with_control(self, status: BrokerStatus, config: Mapping[str, str] | None) -> BrokerStatus:
        """`status` with controller mode; as it is for a broker without, and for a trioha node.

        Of the first status it waits up to `FIRST_S` for the controllers.
        """
        if config is None or not is_controlled(status, config):
            return status
        self._asking = status, config
        role = "master" if status.client is None else "slave"
        if self._control is None:
            self._wanted.set()
            with trio.move_on_after(FIRST_S):
                await self._answered.wait()
        control = self._control
        if control is None:
            return evolve(status, control=ControlStatus(role=role))
        age_s = trio.current_time() - self._asked_s
        if age_s >= (EVERY_S if control.role == role else AGAIN_S):
            self._wanted.set()
        heard_ms = control.leader_heard_ms
        if heard_ms is not None:
            control = evolve(control, leader_heard_ms=heard_ms + round(age_s * 1000))
        return evolve(status, control=control)
