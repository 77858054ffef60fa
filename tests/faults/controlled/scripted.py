"""A controller of one group as a process: `python -m tests.faults.controlled.scripted PORT STATE_FILE`.

It answers as RocketMQ's (`tests.controller.group`), and does what else those do. It takes a broker for
dead whose connection has ended, or whose heartbeats do not come for as long as they say. It elects another
one of the sync-state set that lives, and sends notices. Its state is on its disk before each answer, so it
may be killed. After a start it waits for heartbeats before it takes anybody for dead.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from attrs import astuple, define, evolve, field, frozen
from cattrs.preconf.json import make_converter

from tests.controller.group import SERVED, Group, answer_of_any
from trioha.controller import protocol
from trioha.controller.header import to_request
from trioha.errors import PeerError
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.server import Peer, RemotingServer

LOOK_EVERY_S = 0.1
SILENT_S_MAX = 2.0
"""After a start, for the first heartbeat of each broker."""
NOTICE_WITHIN_S = 1.0
_CONVERTER = make_converter()


def load_group(path: Path) -> Group:
    """The group that was saved last; an empty one if there is no file."""
    return _CONVERTER.loads(path.read_text(), Group) if path.exists() else Group()


def save_group(path: Path, group: Group) -> None:
    """Put the group on the disk; after a kill at any moment there is one whole state."""
    whole = path.with_name(f"{path.name}~")
    whole.write_text(_CONVERTER.dumps(group))
    whole.rename(path)


@frozen
class _Life:
    """What the last heartbeat of a broker said."""

    connection: int
    deadline_s: float
    log_end: tuple[int, int]
    """Last epoch and end of the log: the candidate with the largest is elected."""


@define(eq=False)
class Controller:
    """The controller of one group."""

    address: str
    group: Group
    state_file: Path
    nursery: trio.Nursery
    _lives: dict[int, _Life] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        # Whoever was there before this start may still be.
        deadline_s = trio.current_time() + SILENT_S_MAX
        for broker_id in self.group.addresses:
            self._lives[broker_id] = _Life(-1, deadline_s, (-1, -1))
        self.group.alive = set(self._lives)

    def handle(self, command: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        if command.code == RequestCode.BROKER_HEARTBEAT:
            self._hear(protocol.Heartbeat.of(command.ext_fields), peer.connection)
            return None
        if command.code not in SERVED:
            return response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        was = self.group.copy()
        answer = answer_of_any(command, asked=self.address, leader=self.address) or self.group.answer(
            evolve(command, body=bytes(command.body)), is_alive=self.group.alive.__contains__
        )
        self._changed_from(was)
        return answer

    def _hear(self, heartbeat: protocol.Heartbeat, connection: int) -> None:
        self._lives[heartbeat.broker_id] = _Life(
            connection,
            trio.current_time() + heartbeat.timeout_ms / 1000,
            (heartbeat.epoch, heartbeat.max_offset),
        )
        self.group.alive.add(heartbeat.broker_id)

    def closed(self, peer: Peer) -> None:
        for broker_id, life in list(self._lives.items()):
            if life.connection == peer.connection:
                self._die(broker_id)

    async def watch(self) -> None:
        """Take silent brokers for dead, until cancelled."""
        while True:
            now_s = trio.current_time()
            for broker_id, life in list(self._lives.items()):
                if now_s > life.deadline_s:
                    self._die(broker_id)
            await trio.sleep(LOOK_EVERY_S)

    def _die(self, broker_id: int) -> None:
        group, was = self.group, self.group.copy()
        self._lives.pop(broker_id, None)
        group.alive.discard(broker_id)
        if broker_id != group.master_id:
            return
        candidates = group.members & group.alive
        if candidates:
            group.elect(max(candidates, key=lambda one: (self._lives[one].log_end, one)))
        else:
            group.master_id = None
        self._changed_from(was)

    def _changed_from(self, was: Group) -> None:
        """Save a state that is another one now, and send notices of another master."""
        group = self.group
        if astuple(was) == astuple(group):
            return
        save_group(self.state_file, group)
        if group.master_id is not None and (group.master_id, group.epoch) != (was.master_id, was.epoch):
            for broker_id in sorted(group.alive & group.addresses.keys()):
                self.nursery.start_soon(self._notify, group.addresses[broker_id])

    async def _notify(self, address: str) -> None:
        group = self.group
        if group.master_id is None:
            return
        notice = to_request(group.notice(), body=group.set_of().to_body())
        try:
            async with open_client(address, connect_timeout_s=NOTICE_WITHIN_S) as client:
                await client.request(notice, timeout_s=NOTICE_WITHIN_S)
        except PeerError:
            pass  # it is dead, hangs, or changes its role: it asks by itself


async def run(port: int, state_file: Path) -> None:
    """Be a controller at 127.0.0.1:`port` until the process is killed."""
    async with trio.open_nursery() as nursery:
        controller = Controller(f"127.0.0.1:{port}", load_group(state_file), state_file, nursery)
        server = RemotingServer(controller.handle, on_closed=controller.closed)
        nursery.start_soon(controller.watch)
        await server.serve(host="127.0.0.1", port=port)


if __name__ == "__main__":
    trio.run(run, int(sys.argv[1]), Path(sys.argv[2]))
