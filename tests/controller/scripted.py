"""A controllers' group in one object, for tests in virtual time: it answers as RocketMQ's, with faults.

One address leads; each can be down, or hang. `fault` decides for each request whether it arrives, and whether
its answer does. What RocketMQ's controllers answer was asked of real ones of 5.3.3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum

import trio
import trio.lowlevel
from attrs import Factory, define, field
from trio.testing import memory_stream_pair

from trioha.controller import protocol
from trioha.controller.protocol import ElectedGroup, MemberSet
from trioha.remoting.client import ConnectionLostError, RemotingClient, running
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to

CLUSTER = "check"
NAME = "broker-x"


class Fault(Enum):
    """What becomes of one request."""

    NONE = "none"
    LOST = "lost"
    """It does not arrive."""
    UNANSWERED = "unanswered"
    """It is carried out, and its answer is lost."""
    LATE = "late"
    """Its answer comes after the asker gave up."""
    CUT = "cut"
    """It is carried out, and the connection ends before the answer."""


@define(eq=False)
class Group:
    """The replicated state of the controllers."""

    ids: dict[int, str] = field(factory=dict)
    """Check code by broker id."""
    addresses: dict[int, str] = field(factory=dict)
    alive: set[int] = field(factory=set)
    resigned: set[int] = field(factory=set)
    """Ids of brokers whose last heartbeat had expired."""
    master_id: int | None = None
    epoch: int = 0
    members: frozenset[int] = frozenset()
    set_epoch: int = 0

    def heard(self, heartbeat: protocol.Heartbeat) -> None:
        """Take a heartbeat, which may have expired already."""
        if heartbeat.timeout_ms > 0:
            self.alive.add(heartbeat.broker_id)
            self.resigned.discard(heartbeat.broker_id)
        else:
            self.alive.discard(heartbeat.broker_id)
            self.resigned.add(heartbeat.broker_id)

    def elect(self, broker_id: int) -> None:
        """Make a broker master of a new epoch, alone in the set."""
        self.master_id = broker_id
        self.epoch += 1
        self.members = frozenset((broker_id,))
        self.set_epoch += 1

    def set_of(self) -> MemberSet:
        return MemberSet(self.members, self.set_epoch)


@define(eq=False)
class ScriptedControllers:
    """Several controllers with one state."""

    nursery: trio.Nursery
    leader: str | None
    group: Group = Factory(Group)
    down: set[str] = field(factory=set)
    hanging: set[str] = field(factory=set)
    fault: Callable[[RequestCode], Fault] = lambda _: Fault.NONE
    late_s: float = 4.0
    requests: list[RequestCode] = field(factory=list)
    """All that arrived, heartbeats and questions for the leader left out."""
    heartbeats: list[tuple[float, str, protocol.Heartbeat]] = field(factory=list)
    refuse: dict[RequestCode, int] = field(factory=dict)
    """Codes with which requests are answered whatever they say."""
    _streams: dict[str, list[trio.abc.Stream]] = field(factory=dict)
    _turns: dict[trio.abc.Stream, trio.Lock] = field(factory=dict)
    """One task sends over a stream at a time."""

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[RemotingClient]:
        """In place of dialling."""
        await trio.lowlevel.checkpoint()
        if address in self.down:
            raise ConnectionLostError("cannot connect: refused", address=address)
        ours, theirs = memory_stream_pair()
        self._streams.setdefault(address, []).append(theirs)
        self.nursery.start_soon(self._serve, address, theirs)
        client = RemotingClient(ours, address)
        async with running(client):
            yield client

    async def end(self, address: str) -> None:
        """The controller's process ends, with its connections."""
        self.down.add(address)
        if self.leader == address:
            self.leader = None
        for stream in self._streams.pop(address, []):
            await stream.aclose()

    async def _serve(self, address: str, stream: trio.abc.Stream) -> None:
        decoder = FrameDecoder()
        try:
            async with trio.open_nursery() as nursery:
                while data := await stream.receive_some(65536):
                    decoder.feed(data)
                    while (command := decoder.next_command()) is not None:
                        nursery.start_soon(self._answer, address, stream, command)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(self, address: str, stream: trio.abc.Stream, command: RemotingCommand) -> None:
        if address in self.hanging:
            return
        code = RequestCode(command.code)
        if code is RequestCode.BROKER_HEARTBEAT:
            heartbeat = protocol.Heartbeat.of(command.ext_fields)
            self.heartbeats.append((trio.current_time(), address, heartbeat))
            self.group.heard(heartbeat)
            return
        if code is not RequestCode.CONTROLLER_GET_METADATA_INFO:
            self.requests.append(code)
        fault = self.fault(code)
        if fault is Fault.LOST:
            return
        answer = self.carry_out(address, code, command)
        if fault is Fault.UNANSWERED:
            return
        if fault is Fault.CUT:
            await stream.aclose()
            return
        if fault is Fault.LATE:
            await trio.sleep(self.late_s)
        async with self._turns.setdefault(stream, trio.Lock()):
            await stream.send_all(encode(answer))

    def carry_out(self, address: str, code: RequestCode, command: RemotingCommand) -> RemotingCommand:
        """The answer of the controller at `address`."""
        if code is RequestCode.CONTROLLER_GET_METADATA_INFO:
            metadata = protocol.ControllerMetadata(
                group="g", leader_address=self.leader, is_leader=self.leader == address
            )
            return response_to(command, ResponseCode.SUCCESS, ext_fields=metadata.to_fields())
        if self.leader != address:
            return response_to(command, ResponseCode.CONTROLLER_NOT_LEADER, remark="not the leader")
        if code in self.refuse:
            return response_to(command, self.refuse[code], remark="refused")
        group, fields = self.group, command.ext_fields
        match code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                free = protocol.NextBrokerId(next_broker_id=max(group.ids, default=0) + 1)
                return response_to(command, ResponseCode.SUCCESS, ext_fields=free.to_fields())
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                applied = protocol.ApplyBrokerIdRequest.of(fields)
                holder = group.ids.setdefault(applied.applied_broker_id, applied.register_check_code)
                is_his = holder == applied.register_check_code
                return response_to(
                    command, ResponseCode.SUCCESS if is_his else ResponseCode.CONTROLLER_BROKER_ID_INVALID
                )
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                registered = protocol.RegisterRequest.of(fields)
                if registered.broker_id not in group.ids:
                    return response_to(command, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
                group.addresses[registered.broker_id] = registered.broker_address
                return self._master(command, protocol.Registered)
            case RequestCode.CONTROLLER_ELECT_MASTER:
                return self._elect(command)
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                if not group.addresses:
                    return response_to(command, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
                return self._master(command, protocol.ReplicaInfo)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                return response_to(command, ResponseCode.SUCCESS, body=self._set_data())
            case _:
                assert code is RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
                return self._alter(command)

    def _master(
        self, command: RemotingCommand, kind: type[protocol.Registered | protocol.ReplicaInfo]
    ) -> RemotingCommand:
        group = self.group
        fields = kind(
            master_id=group.master_id,
            master_address=None if group.master_id is None else group.addresses[group.master_id],
            master_epoch=group.epoch,
        )
        return response_to(
            command,
            ResponseCode.SUCCESS,
            ext_fields=fields.to_fields(),
            body=group.set_of().to_body(),
        )

    def _set_data(self) -> bytes:
        """What tools are answered of the group."""
        group = self.group
        in_sync, others = (
            tuple(
                protocol.Replica(NAME, broker_id, address, broker_id in group.alive)
                for broker_id, address in sorted(group.addresses.items())
                if (broker_id in group.members) is is_member
            )
            for is_member in (True, False)
        )
        address = None if group.master_id is None else group.addresses[group.master_id]
        info = protocol.ReplicaSetInfo(
            in_sync, others, group.master_id, address, group.epoch, group.set_epoch
        )
        return protocol.set_data_body({NAME: info} if group.addresses else {})

    def _elect(self, command: RemotingCommand) -> RemotingCommand:
        group, candidate = self.group, protocol.ElectRequest.of(command.ext_fields)
        code: int = ResponseCode.SUCCESS
        others = group.members & group.alive - {group.master_id}
        if group.master_id in group.resigned and others:
            group.elect(min(others))
        elif group.master_id in group.resigned:
            # Real ones find that out a little later.
            group.master_id = None
            return response_to(command, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark="none to elect")
        elif group.master_id is not None:
            code = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        elif group.members and candidate.broker_id not in group.members & group.alive:
            return response_to(command, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark="none to elect")
        else:
            group.elect(candidate.broker_id)
        assert group.master_id is not None
        elected = protocol.Elected(
            master_id=group.master_id,
            master_address=group.addresses[group.master_id],
            master_epoch=group.epoch,
            set_epoch=group.set_epoch,
        )
        body = ElectedGroup(CLUSTER, NAME, group.addresses, group.members).to_body()
        return response_to(command, code, ext_fields=elected.to_fields(), body=body)

    def _alter(self, command: RemotingCommand) -> RemotingCommand:
        group, asked = self.group, protocol.AlterSetRequest.of(command.ext_fields)
        proposed = MemberSet.of_body(command.body)
        refusal = None
        if asked.master_id != group.master_id:
            refusal = ResponseCode.CONTROLLER_INVALID_MASTER
        elif asked.master_epoch != group.epoch:
            refusal = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        elif proposed.epoch != group.set_epoch:
            refusal = ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        elif proposed.members == group.members:
            refusal = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        if refusal is not None:
            fields = protocol.AlteredSet(new_set_epoch=0).to_fields()
            return response_to(command, refusal, ext_fields=fields)
        group.members, group.set_epoch = proposed.members, group.set_epoch + 1
        return response_to(
            command,
            ResponseCode.SUCCESS,
            ext_fields=protocol.AlteredSet(new_set_epoch=group.set_epoch).to_fields(),
            body=group.set_of().to_body(),
        )
