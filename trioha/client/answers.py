"""Answers of brokers and name servers: refusals as errors, and numbers and bodies that can be used."""

from __future__ import annotations

from collections.abc import Mapping

from trioha.errors import PeerError, RemoteProtocolError
from trioha.numbers import I64, NATURAL64, parse_int
from trioha.remoting.codes import ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand
from trioha.remoting.fastjson import parse_json


def refusal(answer: RemotingCommand, address: str, what: str) -> PeerError:
    """The error for an answer of another code than the wanted ones; `what` was asked for."""
    return PeerError(
        f"{what} was answered with {response_code_name(answer.code)} ({answer.code}): "
        f"{(answer.remark or '').strip()[:300]}",
        address=address,
        code=answer.code,
    )


def check(answer: RemotingCommand, address: str, what: str) -> None:
    """Raise PeerError for an answer that is not SUCCESS."""
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, address, what)


def number_field(answer: RemotingCommand, name: str, address: str) -> int:
    """A number of 64 bits in the header of an answer. Raises PeerError."""
    try:
        return parse_int(answer.ext_fields[name], I64 if name == "offset" else NATURAL64)
    except (KeyError, ValueError) as error:
        raise PeerError(f"an answer without a usable {name}: {error}", address=address) from None


def object_body(answer: RemotingCommand, address: str) -> Mapping[object, object]:
    """The body of an answer, which is one JSON object. Raises PeerError."""
    try:
        value = parse_json(answer.body)
    except RemoteProtocolError as error:
        raise PeerError(str(error), address=address) from None
    if not isinstance(value, dict):
        raise PeerError("an answer that is not a JSON object", address=address)
    return value
