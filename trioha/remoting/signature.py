"""Signatures of requests: who sent a request, and that nobody changed it.

See docs/protocol/remoting.md#signed-requests.

A signed request has the fields AccessKey, Signature and sometimes SecurityToken. The signature is the base64
of the HMAC-SHA1, with the secret key, over the values of all other fields in the order of their names,
followed by the body. Code, opaque and remark are not signed.

There are two variants. Clients sign every field; RocketMQ's brokers leave out `_UNIQUE_KEY_QUERY`, and so
refuse the queries by key of RocketMQ's own clients. Here both are valid.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from attrs import evolve, field, frozen

from trioha.remoting.command import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


@frozen
class Credentials:
    """What a client signs its requests with."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    """Sent with the requests and signed like any other field."""


def signed(command: RemotingCommand, credentials: Credentials) -> RemotingCommand:
    """The request with its signature, as a Java client makes it."""
    fields = {**command.ext_fields, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    digest = _digest(fields, command.body, _bytes(credentials.secret_key))
    fields[SIGNATURE] = base64.b64encode(digest).decode("ascii")
    return evolve(command, ext_fields=fields)


def is_signed_with(command: RemotingCommand, secret_key: str) -> bool:
    """Whether the request has a signature of that secret key, in one of the two variants.

    Comparing takes the same time wherever the signatures differ.
    """
    fields = command.ext_fields
    given = _bytes(fields.get(SIGNATURE, ""))
    secret = _bytes(secret_key)
    if hmac.compare_digest(base64.b64encode(_digest(fields, command.body, secret)), given):
        return True
    if UNIQUE_KEY_QUERY not in fields:
        return False
    others = {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    return hmac.compare_digest(base64.b64encode(_digest(others, command.body, secret)), given)


def _digest(fields: Mapping[str, str], body: bytes | memoryview, secret: bytes) -> bytes:
    names = sorted(fields, key=_java_order)
    content = _bytes("".join([fields[name] for name in names if name != SIGNATURE]))
    mac = hmac.new(secret, content, "sha1")
    if body:
        mac.update(body)
    return mac.digest()


def _java_order(name: str) -> bytes:
    """Java compares strings by their UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")


def _bytes(text: str) -> bytes:
    # Lone surrogates become question marks, as in Java.
    return text.encode("utf-8", "replace")
