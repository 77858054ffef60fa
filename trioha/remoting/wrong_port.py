"""What answers at an address that was meant for something else: the same words for all commands and screens.

| mistake | seen | words |
|---|---|---|
| a name server, broker or controller for another | REQUEST_CODE_NOT_SUPPORTED | `check_kind` |
| plain to a port with TLS | a TLS alert, of trioha and of most others | `WANTS_TLS` |
| TLS to a plain port | no handshake | `NO_TLS` |
| a HA port, or one with TLS that sends no alert | closed before an answer | `UNANSWERED` |

Only a server that speaks remoting is asked what it is: a HA port of RocketMQ takes any eight bytes for the
acknowledgement of a slave.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from trioha.errors import PeerError
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request

WANTS_TLS: Final = "this node wants TLS (--tls-ca)"
NO_TLS: Final = (
    "this port speaks no TLS: leave out the TLS options, or it is a HA port (clients use listenPort)"
)
UNANSWERED: Final = (
    "closed the connection without an answer, "
    "as a port does that speaks HA (clients use listenPort) or wants TLS"
)
TLS_ALERT: Final = b"\x15\x03"
"""Start of a TLS alert, up to its major version."""
UNEXPECTED_MESSAGE: Final = b"\x15\x03\x03\x00\x02\x02\x0a"
"""A whole TLS alert: fatal, unexpected_message. What a server says to a client that does not start TLS."""


class Kind(Enum):
    """Kind of a server that speaks remoting; the value is its name for people."""

    NAME_SERVER = "name server"
    BROKER = "broker"
    CONTROLLER = "controller"


_QUESTIONS: Final = {
    Kind.NAME_SERVER: RequestCode.GET_BROKER_CLUSTER_INFO,
    Kind.BROKER: RequestCode.GET_BROKER_RUNTIME_INFO,
    Kind.CONTROLLER: RequestCode.CONTROLLER_GET_METADATA_INFO,
}
"""A request that all servers of one kind know, and no other ones."""
_KINDS: Final = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Kind.NAME_SERVER,
    **{question: kind for kind, question in _QUESTIONS.items()},
}
"""For whom requests are that are not for brokers."""


class Client(Protocol):
    """A connection to the server in question."""

    @property
    def address(self) -> str:
        """The server as `host:port`."""
        ...

    async def request(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """As `RemotingClient.request`."""
        ...


async def check_kind(client: Client, code: int, *, timeout_s: float = 3.0) -> None:
    """Return if a server that does not know request `code` is of the kind that the request is for.

    Raises PeerError with what it is otherwise, and without an answer within `timeout_s` for each question.
    """
    meant = next((kind for known, kind in _KINDS.items() if known == code), Kind.BROKER)
    for kind, question in _QUESTIONS.items():
        answer = await client.request(request(question), timeout_s=timeout_s)
        if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            if kind is meant:
                return
            option = " (its option is --namesrv)" if kind is Kind.NAME_SERVER else ""
            reason = f"this is a {kind.value}{option}: a {meant.value} was expected"
            break
    else:
        reason = "this is neither a broker nor a name server nor a controller"
    raise PeerError(reason, address=client.address, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def words_of_bytes(first: bytes) -> str | None:
    """What answered with these first bytes, which are not of remoting; None if that is not known."""
    if first.startswith(TLS_ALERT):
        return WANTS_TLS
    return "this port speaks HTTP" if first.startswith(b"HTTP/") else None


def words_of_handshake(reason: str | None) -> str:
    """Why a TLS handshake failed: OpenSSL's `reason`, None if the connection was closed without any."""
    if reason is None or reason in _NO_HANDSHAKE:
        return NO_TLS
    return reason


_NO_HANDSHAKE: Final = frozenset(
    ("UNEXPECTED_EOF_WHILE_READING", "WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG")
)
"""OpenSSL's reasons where the peer has sent nothing, or what is not TLS."""
