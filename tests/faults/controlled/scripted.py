"""A controller of one group as a process: `python -m tests.faults.controlled.scripted PORT STATE_FILE`.

It answers as RocketMQ's (`tests.controller.scripted`), and does what else those do. It takes a broker for
dead whose connection has ended, or whose heartbeats do not come for as long as they say. It elects another
one of the sync-state set that lives, and sends notices. Its state is on its disk before each answer, so it
may be killed. After a start it waits for heartbeats before it takes anybody for dead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import trio
from attrs import define, evolve, field, frozen

from tests.controller.scripted import Group, ScriptedControllers
from trioha.controller import protocol
from trioha.controller.protocol import MemberSet, to_request
from trioha.errors import PeerError
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.server import Peer, RemotingServer

LOOK_EVERY_S = 0.1
SILENT_S_MAX = 2.0
"""After a start, for the first heartbeat of each broker."""
NOTICE_WITHIN_S = 1.0
_SERVED = frozenset(
    (
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
    )
)


def load_group(path: Path) -> Group:
    """The group that was saved last; an empty one if there is no file."""
    if not path.exists():
        return Group()
    document = json.loads(path.read_text())
    return Group(
        ids={int(key): value for key, value in document["ids"].items()},
        addresses={int(key): value for key, value in document["addresses"].items()},
        master_id=document["master_id"],
        epoch=document["epoch"],
        members=frozenset(document["members"]),
        set_epoch=document["set_epoch"],
    )


def save_group(path: Path, group: Group) -> None:
    """Put the group on the disk; after a kill at any moment there is one whole state."""
    whole = path.with_name(f"{path.name}~")
    whole.write_text(
        json.dumps(
            {
                "ids": group.ids,
                "addresses": group.addresses,
                "master_id": group.master_id,
                "epoch": group.epoch,
                "members": sorted(group.members),
                "set_epoch": group.set_epoch,
            }
        )
    )
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

    scripted: ScriptedControllers
    state_file: Path
    nursery: trio.Nursery
    _lives: dict[int, _Life] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        # Whoever was there before this start may still be.
        deadline_s = trio.current_time() + SILENT_S_MAX
        for broker_id in self.group.addresses:
            self._lives[broker_id] = _Life(-1, deadline_s, (-1, -1))
        self.group.alive = set(self._lives)

    @property
    def group(self) -> Group:
        """Its state."""
        return self.scripted.group

    def handle(self, command: RemotingCommand, peer: Peer) -> RemotingCommand | None:
        """The answer to one request."""
        try:
            code = RequestCode(command.code)
        except ValueError:
            return response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if code is RequestCode.BROKER_HEARTBEAT:
            self._hear(protocol.Heartbeat.of(command.ext_fields), peer.connection)
            return None
        if code not in _SERVED:
            return response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        command = evolve(command, body=bytes(command.body))
        was = self._state()
        answer = self._designated(command) if code is RequestCode.CONTROLLER_ELECT_MASTER else None
        if code is RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET:
            proposed = MemberSet.of_body(command.body)
            if not proposed.members <= self.group.alive:
                answer = response_to(command, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, remark="not alive")
        if answer is None:
            assert self.scripted.leader is not None
            answer = self.scripted.carry_out(self.scripted.leader, code, command)
        self._changed_from(was)
        return answer

    def _designated(self, command: RemotingCommand) -> RemotingCommand | None:
        """An operator's election; None if it is none, or cannot be."""
        wish = protocol.ElectRequest.of(command.ext_fields)
        group = self.group
        if not wish.is_designated or wish.broker_id not in group.members & group.alive:
            return None
        if wish.broker_id != group.master_id:
            group.elect(wish.broker_id)
        fields = protocol.Elected(
            master_id=group.master_id,
            master_address=group.addresses[wish.broker_id],
            master_epoch=group.epoch,
            set_epoch=group.set_epoch,
        )
        return response_to(
            command, ResponseCode.SUCCESS, ext_fields=fields.to_fields(), body=group.set_of().to_body()
        )

    def _hear(self, heartbeat: protocol.Heartbeat, connection: int) -> None:
        self._lives[heartbeat.broker_id] = _Life(
            connection,
            trio.current_time() + heartbeat.timeout_ms / 1000,
            (heartbeat.epoch, heartbeat.max_offset),
        )
        self.group.alive.add(heartbeat.broker_id)

    def closed(self, peer: Peer) -> None:
        """A connection has ended."""
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
        group, was = self.group, self._state()
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

    def _state(self) -> tuple[object, ...]:
        group = self.group
        return (
            dict(group.ids),
            dict(group.addresses),
            group.master_id,
            group.epoch,
            group.members,
            group.set_epoch,
        )

    def _changed_from(self, was: tuple[object, ...]) -> None:
        """Save a state that is another one now, and send notices of another master."""
        group = self.group
        if self._state() == was:
            return
        save_group(self.state_file, group)
        if group.master_id is not None and (group.master_id, group.epoch) != (was[2], was[3]):
            for address in self._addresses_of_living():
                self.nursery.start_soon(self._notify, address)

    def _addresses_of_living(self) -> Iterator[str]:
        return (self.group.addresses[one] for one in sorted(self.group.alive & self.group.addresses.keys()))

    async def _notify(self, address: str) -> None:
        group = self.group
        if group.master_id is None:
            return
        notice = protocol.RoleNotice(
            master_id=group.master_id,
            master_address=group.addresses[group.master_id],
            master_epoch=group.epoch,
            set_epoch=group.set_epoch,
        )
        try:
            async with open_client(address, connect_timeout_s=NOTICE_WITHIN_S) as client:
                await client.request(
                    to_request(notice, body=group.set_of().to_body()), timeout_s=NOTICE_WITHIN_S
                )
        except PeerError:
            pass  # it is dead, hangs, or changes its role: it asks by itself


async def run(port: int, state_file: Path) -> None:
    """Be a controller at 127.0.0.1:`port` until the process is killed."""
    async with trio.open_nursery() as nursery:
        scripted = ScriptedControllers(nursery, f"127.0.0.1:{port}", load_group(state_file))
        controller = Controller(scripted, state_file, nursery)
        server = RemotingServer(controller.handle)
        server.on_closed = controller.closed
        nursery.start_soon(controller.watch)
        await server.serve(host="127.0.0.1", port=port)


if __name__ == "__main__":
    trio.run(run, int(sys.argv[1]), Path(sys.argv[2]))
