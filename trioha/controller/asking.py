"""What clients ask controllers and brokers of their groups (docs/protocol/ha.md#controller-requests).

Each function raises PeerError for no answer and for an error code, RemoteProtocolError for an answer that
does not read.
"""

from __future__ import annotations

from collections.abc import Iterable

from trioha.controller.bodies import EpochCache, ReplicaSetInfo, broker_names_body, parse_set_data
from trioha.controller.protocol import ControllerMetadata
from trioha.errors import PeerError, TriohaError
from trioha.remoting.client import RemotingClient
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand, request


async def fetch_metadata(client: RemotingClient, *, timeout_s: float) -> ControllerMetadata:
    """Who leads, as the controller at `client` knows it (1005)."""
    answer = await _ask(client, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=timeout_s)
    return ControllerMetadata.of(answer.ext_fields)


async def fetch_groups(
    client: RemotingClient, names: Iterable[str], *, timeout_s: float
) -> dict[str, ReplicaSetInfo]:
    """Those of the groups that the leading controller has, by broker name (1006)."""
    code, body = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, broker_names_body(list(dict.fromkeys(names)))
    return parse_set_data((await _ask(client, code, body=body, timeout_s=timeout_s)).body)


async def fetch_epochs(client: RemotingClient, *, timeout_s: float) -> EpochCache:
    """The epochs of a broker's log (1007)."""
    answer = await _ask(client, RequestCode.GET_BROKER_EPOCH_CACHE, timeout_s=timeout_s)
    return EpochCache.of_body(answer.body)


def reason_of(error: TriohaError) -> str:
    """Why nothing was answered, without the address."""
    return error.reason if isinstance(error, PeerError) else str(error)


async def _ask(
    client: RemotingClient, code: RequestCode, *, body: bytes = b"", timeout_s: float
) -> RemotingCommand:
    answer = await client.request(request(code, body=body), timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        remark = f": {answer.remark[:200]}" if answer.remark else ""
        raise PeerError(
            f"{code.name} was answered with {response_code_name(answer.code)}{remark}",
            address=client.address,
            code=answer.code,
        )
    return answer
