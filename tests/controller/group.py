"""The state of a controllers' group, and what its leader answers: the rules of RocketMQ, as seen on 5.3.3 and 5.5.0.

Scripted controllers (`scripted.py`), simulated ones (`tests.simulation.failover.controllers`) and the process of
fault runs (`tests.faults.controlled.scripted`) share it. They know who lives, and may elect in another way.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from attrs import define, evolve, field

from tests.controller.set_data import elected_body, set_data_body
from trioha.controller import bodies, protocol
from trioha.controller.bodies import MemberSet
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to

CLUSTER = "check"
NAME = "broker-x"
SERVED = frozenset(
    (
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        RequestCode.CONTROLLER_REGISTER_BROKER,
    )
)


def answer_of_any(command: RemotingCommand, *, asked: str, leader: str | None) -> RemotingCommand | None:
    """What a controller answers by itself, whether it leads or not; None for what only the state answers."""
    if command.code == RequestCode.CONTROLLER_GET_METADATA_INFO:
        metadata = protocol.ControllerMetadata(group="g", leader_address=leader, is_leader=leader == asked)
        return response_to(command, ResponseCode.SUCCESS, ext_fields=metadata.to_fields())
    if leader != asked:
        return response_to(command, ResponseCode.CONTROLLER_NOT_LEADER, remark="not the leader")
    return None


async def serve_frames(stream: trio.abc.Stream, answer: Callable[[RemotingCommand], Awaitable[None]]) -> None:
    """Answer each request that comes, all of them side by side, until the connection ends."""
    decoder = FrameDecoder()
    try:
        async with trio.open_nursery() as nursery:
            while data := await stream.receive_some(65536):
                decoder.feed(data)
                while (command := decoder.next_command()) is not None:
                    nursery.start_soon(answer, command)
            nursery.cancel_scope.cancel()
    except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
        pass
    finally:
        await trio.aclose_forcefully(stream)


@define(eq=False)
class Group:
    """What the controllers agree on."""

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
    """0 before the first master."""

    def copy(self) -> Group:
        """The state as it is now."""
        return evolve(
            self,
            ids=dict(self.ids),
            addresses=dict(self.addresses),
            alive=set(self.alive),
            resigned=set(self.resigned),
        )

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

    def elect_for(self, asked: protocol.ElectRequest) -> int:
        """Carry out the election that a broker or an operator asks for; returns the code of the answer."""
        if asked.is_designated and asked.broker_id in self.members & self.alive:
            if asked.broker_id != self.master_id:
                self.elect(asked.broker_id)
        elif self.master_id in self.resigned:
            others = self.members & self.alive - {self.master_id}
            if not others:
                # Real ones find that out a little later.
                self.master_id = None
                return ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            self.elect(min(others))
        elif self.master_id is not None:
            return ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        elif self.members and asked.broker_id not in self.members & self.alive:
            return ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        else:
            self.elect(asked.broker_id)
        return ResponseCode.SUCCESS

    def set_of(self) -> MemberSet:
        """The sync-state set."""
        return MemberSet(self.members, self.set_epoch)

    @property
    def master_address(self) -> str | None:
        """Where the master is."""
        return None if self.master_id is None else self.addresses[self.master_id]

    def notice(self) -> protocol.RoleNotice:
        """What brokers are sent after an election."""
        return protocol.RoleNotice(
            master_id=self.master_id,
            master_address=self.master_address,
            master_epoch=self.epoch,
            set_epoch=self.set_epoch,
        )

    # -- answers -------------------------------------------------------------------------------------------

    def answer(
        self,
        command: RemotingCommand,
        *,
        elect: Callable[[protocol.ElectRequest], int] | None = None,
        is_alive: Callable[[int], bool] | None = None,
    ) -> RemotingCommand:
        """The answer of the leader.

        `elect` is called in place of `elect_for`; with `is_alive` a set has registered, living members only.
        """
        code, fields = RequestCode(command.code), command.ext_fields
        match code:
            case RequestCode.CONTROLLER_GET_NEXT_BROKER_ID:
                free = protocol.NextBrokerId(next_broker_id=max(self.ids, default=0) + 1)
                return response_to(command, ResponseCode.SUCCESS, ext_fields=free.to_fields())
            case RequestCode.CONTROLLER_APPLY_BROKER_ID:
                applied = protocol.ApplyBrokerIdRequest.of(fields)
                holder = self.ids.setdefault(applied.applied_broker_id, applied.register_check_code)
                is_granted = holder == applied.register_check_code
                return response_to(
                    command,
                    ResponseCode.SUCCESS if is_granted else ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                )
            case RequestCode.CONTROLLER_REGISTER_BROKER:
                registered = protocol.RegisterRequest.of(fields)
                if registered.broker_id not in self.ids:
                    return response_to(command, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
                self.addresses[registered.broker_id] = registered.broker_address
                return self._master(command, protocol.Registered)
            case RequestCode.CONTROLLER_GET_REPLICA_INFO:
                if not self.addresses:
                    return response_to(command, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
                return self._master(command, protocol.ReplicaInfo)
            case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA:
                return response_to(command, ResponseCode.SUCCESS, body=self._set_data())
            case RequestCode.CONTROLLER_ELECT_MASTER:
                return self._elected(command, elect or self.elect_for)
            case _:
                assert code is RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, code
                return self._altered(command, is_alive)

    def _master(
        self, command: RemotingCommand, kind: type[protocol.Registered | protocol.ReplicaInfo]
    ) -> RemotingCommand:
        fields = kind(
            master_id=self.master_id, master_address=self.master_address, master_epoch=self.epoch
        ).to_fields()
        return response_to(command, ResponseCode.SUCCESS, ext_fields=fields, body=self.set_of().to_body())

    def _set_data(self) -> bytes:
        """What tools are answered of the group."""
        in_sync, others = (
            tuple(
                bodies.Replica(NAME, broker_id, address, broker_id in self.alive)
                for broker_id, address in sorted(self.addresses.items())
                if (broker_id in self.members) is is_member
            )
            for is_member in (True, False)
        )
        info = bodies.ReplicaSetInfo(
            in_sync, others, self.master_id, self.master_address, self.epoch, self.set_epoch
        )
        return set_data_body({NAME: info} if self.addresses else {})

    def _elected(
        self, command: RemotingCommand, elect: Callable[[protocol.ElectRequest], int]
    ) -> RemotingCommand:
        asked = protocol.ElectRequest.of(command.ext_fields)
        if asked.broker_id not in self.addresses:
            return response_to(command, ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
        code = elect(asked)
        if code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
            return response_to(command, code, remark="none to elect")
        elected = protocol.Elected(
            master_id=self.master_id,
            master_address=self.master_address,
            master_epoch=self.epoch,
            set_epoch=self.set_epoch,
        )
        body = elected_body(CLUSTER, NAME, self.addresses, self.members)
        return response_to(command, code, ext_fields=elected.to_fields(), body=body)

    def _altered(self, command: RemotingCommand, is_alive: Callable[[int], bool] | None) -> RemotingCommand:
        asked = protocol.AlterSetRequest.of(command.ext_fields)
        proposed = MemberSet.of_body(command.body)
        refusal = None
        if asked.master_id != self.master_id:
            refusal = ResponseCode.CONTROLLER_INVALID_MASTER
        elif asked.master_epoch != self.epoch:
            refusal = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        elif proposed.epoch != self.set_epoch:
            refusal = ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        elif is_alive is not None and not proposed.members <= self.addresses.keys():
            refusal = ResponseCode.CONTROLLER_INVALID_REPLICAS
        elif is_alive is not None and not all(map(is_alive, proposed.members)):
            refusal = ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
        elif proposed.members == self.members or asked.master_id not in proposed.members:
            refusal = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        if refusal is not None:
            return response_to(command, refusal, ext_fields=protocol.AlteredSet(new_set_epoch=0).to_fields())
        self.members, self.set_epoch = proposed.members, self.set_epoch + 1
        fields = protocol.AlteredSet(new_set_epoch=self.set_epoch).to_fields()
        return response_to(command, ResponseCode.SUCCESS, ext_fields=fields, body=self.set_of().to_body())
