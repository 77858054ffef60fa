"""Requests of one broker to the leading controller, and its answers.

See docs/protocol/ha.md#controller-requests.

Each method raises PeerError for no answer, RefusedError for an error code, and RemoteProtocolError for an
answer that does not read.
"""

from __future__ import annotations

from collections.abc import Callable

from trioha.controller import protocol
from trioha.controller.agent_status import AgentSettings
from trioha.controller.bodies import MemberSet, elected_members
from trioha.controller.header import Header, to_request
from trioha.controller.identity import Application
from trioha.controller.links import ControllerLinks, Link
from trioha.controller.protocol import MasterHeader
from trioha.controller.role import Role
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.codes import ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand


class RefusedError(Exception):
    """A controller answered with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        super().__init__(f"{response_code_name(code)}: {remark[:200]}")


class LeaderRequests:
    """Sends requests over links."""

    def __init__(
        self, settings: AgentSettings, links: ControllerLinks, *, clock_ms: Callable[[], int]
    ) -> None:
        """`links` note what has answered; `clock_ms` is the wall clock."""
        self._settings = settings
        self._links = links
        self._clock_ms = clock_ms
        self._names = {"cluster_name": settings.cluster_name, "broker_name": settings.broker_name}

    async def free_id(self, link: Link) -> Application:
        """An application for an id that no broker of the group has."""
        answer = await self._ask(link, protocol.NextBrokerIdRequest(**self._names))
        return Application(
            broker_id=protocol.NextBrokerId.of(answer.ext_fields).next_broker_id,
            check_code=f"{self._settings.broker_address};{self._clock_ms()}",
        )

    async def apply(self, link: Link, application: Application) -> bool:
        """Apply for an id; False if another broker has it."""
        asked = protocol.ApplyBrokerIdRequest(
            applied_broker_id=application.broker_id,
            register_check_code=application.check_code,
            **self._names,
        )
        refused = ResponseCode.CONTROLLER_BROKER_ID_INVALID
        return (await self._ask(link, asked, accepted=refused)).code != refused

    async def register(self, link: Link, broker_id: int) -> tuple[MasterHeader, MemberSet]:
        """Register this start of the broker; the master and its set."""
        asked = protocol.RegisterRequest(
            broker_id=broker_id,
            broker_address=self._settings.broker_address,
            invoke_time_ms=self._clock_ms(),
            **self._names,
        )
        answer = await self._ask(link, asked)
        return protocol.Registered.of(answer.ext_fields), MemberSet.of_body(answer.body)

    async def elect(self, link: Link, broker_id: int) -> tuple[MasterHeader, MemberSet]:
        """Ask for an election; the master that was elected, or is still there, and its set."""
        asked = protocol.ElectRequest(
            broker_id=broker_id, is_designated=False, invoke_time_ms=self._clock_ms(), **self._names
        )
        answer = await self._ask(link, asked, accepted=ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        fields, members = protocol.Elected.of(answer.ext_fields), elected_members(answer.body)
        if fields.master_id is None:
            raise RefusedError(answer.code, "no master was elected")
        return fields, MemberSet(members, fields.set_epoch or 0)

    async def replica_info(self, link: Link) -> tuple[MasterHeader, MemberSet]:
        """The master of the group and its set."""
        asked = protocol.ReplicaInfoRequest(broker_name=self._settings.broker_name)
        answer = await self._ask(link, asked)
        return protocol.ReplicaInfo.of(answer.ext_fields), MemberSet.of_body(answer.body)

    async def alter_set(self, link: Link, role: Role, proposed: MemberSet) -> MemberSet:
        """Propose a set as the master of `role`, with the epoch of the one that it replaces; the new one."""
        asked = protocol.AlterSetRequest(
            broker_name=self._settings.broker_name,
            master_id=role.broker_id,
            master_epoch=role.epoch,
            invoke_time_ms=self._clock_ms(),
        )
        answer = await self._ask(link, asked, body=proposed.to_body())
        set_epoch = protocol.AlteredSet.of(answer.ext_fields).new_set_epoch
        members = MemberSet.of_body(answer.body).members
        if set_epoch <= proposed.epoch or role.broker_id not in members:
            raise RemoteProtocolError(
                f"accepted the set {sorted(members)} with epoch {set_epoch}, "
                f"asked by broker {role.broker_id} for one after epoch {proposed.epoch}"
            )
        return MemberSet(members, set_epoch)

    async def _ask(
        self,
        link: Link,
        fields: Header,
        *,
        body: bytes = b"",
        accepted: ResponseCode = ResponseCode.SUCCESS,
    ) -> RemotingCommand:
        """The answer with SUCCESS, or with the code `accepted`."""
        if link.client is None:
            raise PeerError("the connection was closed", address=link.address)
        answer = await link.client.request(
            to_request(fields, body=body), timeout_s=self._settings.request_timeout_s
        )
        if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
            self._links.heard(link)
        if answer.code not in {ResponseCode.SUCCESS, accepted}:
            raise RefusedError(answer.code, answer.remark or "")
        return answer
