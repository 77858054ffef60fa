"""Dispatches requests to their processors; other codes are not supported.

See docs/protocol/remoting.md#requests-and-responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from trioha.broker.info import BrokerInfo
from trioha.broker.send_processor import SendProcessor
from trioha.broker.status_publisher import StatusPublisher
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.serving import Answer, Handler, Peer
from trioha.remoting.status_subscription import StatusSubscription


class BrokerProcessor:
    """The handler of the broker's remoting server."""

    def __init__(
        self,
        *,
        send: SendProcessor,
        info: BrokerInfo,
        updates: StatusPublisher,
        handlers: Mapping[int, Handler] = MappingProxyType({}),
    ) -> None:
        """`updates` gets the subscriptions; its `run` belongs to the caller.

        `handlers` answer further requests, by request code.
        """
        self._send = send
        self._info = info
        self._updates = updates
        self._handlers = handlers

    def __call__(self, request: RemotingCommand, peer: Peer) -> Answer:
        """The response to `request`, or an awaitable of it."""
        match request.code:
            case RequestCode.SEND_MESSAGE | RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._send.answer(request, peer)
            case RequestCode.GET_BROKER_HA_STATUS:
                return self._ha_status(request, peer)
            case RequestCode.GET_BROKER_RUNTIME_INFO:
                return self._runtime_info(request)
            case code if (handler := self._handlers.get(code)) is not None:
                return handler(request, peer)
            case code:
                return response_to(
                    request,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    remark=f" request type {code} not supported",
                )

    def _ha_status(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        updates = StatusSubscription.of(request.ext_fields)
        body = self._info.ha_status_body()
        if updates is not None:  # A request that fails subscribes nobody.
            self._updates.subscribe(peer.connection, updates)
        return response_to(
            request,
            ResponseCode.SUCCESS,
            ext_fields=None if updates is None else updates.to_fields(),
            body=body,
        )

    async def _runtime_info(self, request: RemotingCommand) -> RemotingCommand:
        return response_to(request, ResponseCode.SUCCESS, body=await self._info.runtime_info_body())
