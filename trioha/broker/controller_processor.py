"""Requests of controllers and their tools to a broker of controller mode.

See docs/protocol/ha.md#controller-requests, docs/protocol/ha.md#status-requests.

| code | request | answer |
|---|---|---|
| 1007 | GET_BROKER_EPOCH_CACHE | the epochs of the log; brokerId 0 on a master, as a real broker says |
| 906 | EXCHANGE_BROKER_HA_INFO, without fields, of a master | its HA address, its address |
| 1008 | NOTIFY_BROKER_ROLE_CHANGED, one-way | the agent asks the leading controller |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trioha.controller.agent import ControllerAgent
from trioha.controller.bodies import CachedEpoch, EpochCache
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.client import NO_SECURITY, ClientSecurity, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, request, response_to
from trioha.remoting.serving import Handler, Peer
from trioha.store.epochs import EpochTable

OPEN_END: Final = 2**63 - 1
"""End of the last epoch: it goes on."""
MASTER_ID: Final = 0
MASTER_HA_ADDRESS: Final = "masterHaAddress"


class ControllerProcessor:
    """Answers for one broker, in any of its roles."""

    def __init__(
        self,
        agent: ControllerAgent,
        *,
        cluster_name: str,
        broker_name: str,
        epochs: Callable[[], EpochTable],
        max_offset: Callable[[], int],
        ha_address: str,
    ) -> None:
        """`epochs` and `max_offset` are those of the log as of now; slaves dial `ha_address`."""
        self._ha_address = ha_address
        self._agent = agent
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._epochs = epochs
        self._max_offset = max_offset

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self._epoch_cache,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._role_changed,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self._exchange_ha_info,
        }

    def _epoch_cache(self, asked: RemotingCommand, _: Peer) -> RemotingCommand:
        cache = EpochCache(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            broker_id=self._broker_id(),
            max_offset=self._max_offset(),
            epochs=cached_epochs(self._epochs()),
        )
        return response_to(asked, ResponseCode.SUCCESS, body=cache.to_body())

    def _exchange_ha_info(self, asked: RemotingCommand, _: Peer) -> RemotingCommand:
        role = self._agent.role
        if asked.ext_fields.get(MASTER_HA_ADDRESS) or role is None or not role.is_master:
            # What a master pushes is not used: the controllers name the master.
            return response_to(asked, ResponseCode.SUCCESS)
        fields = {MASTER_HA_ADDRESS: self._ha_address, "masterFlushOffset": "0"}
        if role.master_address is not None:
            fields["masterAddress"] = role.master_address
        return response_to(asked, ResponseCode.SUCCESS, ext_fields=fields)

    def _role_changed(self, asked: RemotingCommand, _: Peer) -> RemotingCommand:
        try:
            self._agent.role_changed(asked.ext_fields, asked.body)
        except RemoteProtocolError as error:
            raise BadRequestError(str(error)) from None
        return response_to(asked, ResponseCode.SUCCESS)

    def _broker_id(self) -> int:
        role = self._agent.role
        if role is not None and role.is_master:
            return MASTER_ID
        broker_id = self._agent.broker_id
        return -1 if broker_id is None else broker_id


def cached_epochs(table: EpochTable) -> tuple[CachedEpoch, ...]:
    """The epochs of a log as brokers answer them: each ends where the next one begins."""
    ends = (*(entry.start_offset for entry in table.entries[1:]), OPEN_END)
    return tuple(
        CachedEpoch(entry.epoch, entry.start_offset, end)
        for entry, end in zip(table.entries, ends, strict=False)
    )


async def fetch_ha_address(
    address: str, *, security: ClientSecurity = NO_SECURITY, timeout_s: float = 1.0
) -> str:
    """The HA address of the master at `address`, trioha's or RocketMQ's.

    Raises PeerError if it does not answer in time, or is no master now.
    """
    async with open_client(address, connect_timeout_s=timeout_s, security=security) as client:
        answer = await client.request(request(RequestCode.EXCHANGE_BROKER_HA_INFO), timeout_s=timeout_s)
    found = answer.ext_fields.get(MASTER_HA_ADDRESS)
    if answer.code != ResponseCode.SUCCESS or not found:
        raise PeerError("is not serving as master yet", address=address, code=answer.code)
    return found
