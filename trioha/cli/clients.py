"""What the commands that are clients of a cluster share: where it is, signals, and messages as JSON."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final, TypeVar

import trio
from attrs import frozen
from cyclopts import Parameter

from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.client.cluster import Cluster, open_cluster, parse_name_servers
from trioha.client.messages import Message, ReceivedMessage
from trioha.client.routes import SingleBroker
from trioha.errors import ConfigError, PeerError, RemoteProtocolError, TriohaError, leaves_of
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import NO_SECURITY, ClientSecurity, open_client
from trioha.remoting.name_server import fetch_broker_groups
from trioha.remoting.subscriptions import Subscription

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
"""RocketMQ's environment variable for name servers."""
NAME_SERVER_DEFAULT: Final = "127.0.0.1:9876"
SHOWN_APART: Final = frozenset(("KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "RETRY_TOPIC"))
"""Properties with a field of their own in the JSON of a message."""
IGNORED_FIELDS: Final = frozenset(
    (
        "brokerName", "queueId", "queueOffset", "msgId", "offsetMsgId", "bornTimestamp", "storeTimestamp",
        "reconsumeTimes", "compression",
    )
)  # fmt: skip
"""Fields of received messages that a message to send does not have: `consume | produce` copies messages."""

T = TypeVar("T")


@frozen
class ClusterAddress:
    """Where a cluster is: name servers, or one broker."""

    name_servers: tuple[str, ...] = ()
    broker: SingleBroker | None = None
    security: ClientSecurity = NO_SECURITY
    """Of the connections to all of them."""

    @classmethod
    def of(
        cls,
        *,
        namesrv: str | None,
        broker: str | None,
        queues: int,
        security: SecurityOptions = NO_SECURITY_OPTIONS,
    ) -> ClusterAddress:
        """Of the options `--namesrv` and `--broker`. Blocks. Raises ConfigError."""
        if queues < 1:
            raise ConfigError(f"{queues} is too few", key="--queues", hint="at least 1")
        if broker is not None:
            if namesrv is not None:
                raise ConfigError("is given beside --namesrv", key="--broker", hint="use one of them")
            return cls(broker=SingleBroker(str(parse_address(broker)), queues), security=security.read())
        return cls(name_servers_of(() if namesrv is None else (namesrv,)), security=security.read())

    def open(self) -> AbstractAsyncContextManager[Cluster]:
        """A client of the cluster."""
        return open_cluster(name_servers=self.name_servers, broker=self.broker, security=self.security)

    def run(self, work: Callable[[Cluster], Awaitable[T]]) -> T:
        """What `work` returns, called with a client of the cluster. Blocks."""

        async def main() -> T:
            async with self.open() as cluster:
                return await work(cluster)

        return trio.run(main)


@Parameter(name="*")
@frozen(kw_only=True)
class ClusterOptions:
    """`--namesrv` and `--broker`, of commands that look at a cluster or change it."""

    namesrv: Annotated[
        str | None,
        Parameter(
            help="Name servers, HOST:PORT with ; between them; NAMESRV_ADDR, or 127.0.0.1:9876, if not given."
        ),
    ] = None
    broker: Annotated[
        str | None, Parameter(help="A broker's listen address: only this one, without a name server.")
    ] = None

    def read(self, security: SecurityOptions) -> ClusterAddress:
        """Where the cluster is. Blocks. Raises ConfigError."""
        return ClusterAddress.of(namesrv=self.namesrv, broker=self.broker, queues=1, security=security)


NO_CLUSTER_OPTIONS: Final = ClusterOptions()


def name_servers_of(given: Sequence[str]) -> tuple[str, ...]:
    """The name servers of the options `--namesrv`; without any those of NAMESRV_ADDR, or the local one.

    Raises ConfigError.
    """
    try:
        return parse_name_servers(given or os.environ.get(NAME_SERVER_VARIABLE) or NAME_SERVER_DEFAULT)
    except ConfigError as error:
        raise ConfigError(error.reason, key="--namesrv", hint=error.hint) from None


async def find_master(
    name_servers: Sequence[str], name: str | None, *, timeout_s: float, security: ClientSecurity
) -> Address:
    """The master of the brokers `name`, or of the only ones, by the first name server that answers.

    Raises PeerError or RemoteProtocolError if none answers, ConfigError if the master cannot be told.
    """
    failure: TriohaError | None = None
    for address in name_servers:
        try:
            async with open_client(address, connect_timeout_s=timeout_s, security=security) as client:
                groups = await fetch_broker_groups(client, timeout_s=timeout_s)
        except (PeerError, RemoteProtocolError) as error:
            failure = error
            continue
        masters = {group.broker_name: found for group in groups if (found := group.addresses.get(0))}
        if name in masters or (name is None and len(masters) == 1):
            return parse_address(masters[name] if name is not None else next(iter(masters.values())))
        known = f"there are masters of {', '.join(masters)}" if masters else "no master is registered"
        raise ConfigError(
            f"{address} lists no master of {name!r}" if name is not None else "is needed",
            key="--broker",
            hint=f"{known}: give HOST:PORT, or one of these names" if masters else f"{known} at {address}",
        )
    assert failure is not None, "there is a name server"
    raise failure


def check_tags(topic: str, tags: str) -> None:
    """Raise ConfigError about `--tags` for an expression that is none."""
    try:
        Subscription.parse(topic, tags)
    except ValueError as error:
        raise ConfigError(str(error), key="--tags", hint="write * or TAG || TAG") from None


async def run_with_signals(work: Callable[[], Awaitable[T]], *, on_signal: Callable[[], None]) -> T:
    """Run `work`; `on_signal` is called for each SIGINT or SIGTERM. A single error is not in a group.

    Must run in the main thread, as signals do.
    """
    failure: Exception | None = None
    results: list[T] = []
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def receive_signals() -> None:
                async for _ in signals:
                    on_signal()

            nursery.start_soon(receive_signals)
            try:
                results.append(await work())
            except Exception as error:  # noqa: BLE001 - raised again below, outside the nursery
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        leaves = leaves_of(failure)
        raise leaves[0] if len(leaves) == 1 else failure
    return results[0]


def message_to_json(message: ReceivedMessage) -> dict[str, Any]:
    """The object that `trioha consume` prints; `body` as text if it is UTF-8, else as base64."""
    fields: dict[str, Any] = {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "reconsumeTimes": message.reconsume_times,
        "flag": message.flag,
        "tags": message.tag,
        "keys": list(message.keys),
        "properties": {name: value for name, value in message.properties.items() if name not in SHOWN_APART},
    }
    if message.compression is not None:
        fields["compression"] = message.compression
    try:
        fields["body"] = message.body.decode()
    except UnicodeDecodeError:
        fields["bodyBase64"] = base64.b64encode(message.body).decode()
    return fields


def message_of_json(value: object, *, topic: str | None) -> tuple[Message, str | None]:
    """The message and the sharding key of an object on a line for `trioha produce`.

    `topic` is that of objects without one. Raises ValueError.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the line's mistake, not a caller's
    fields = {name: content for name, content in value.items() if name not in IGNORED_FIELDS}
    if value.get("compression") is not None:
        raise ValueError("the body is compressed: it cannot be sent as it is")
    body = _body(fields)
    keys = fields.pop("keys", None) or ()
    if isinstance(keys, str):
        keys = keys.split()
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise ValueError("keys is not a list of texts")
    properties = fields.pop("properties", None) or {}
    if not isinstance(properties, Mapping) or not all(
        isinstance(content, str) for content in properties.values()
    ):
        raise ValueError("properties is not an object of texts")
    own_topic = _text(fields, "topic") or topic
    if own_topic is None:
        raise ValueError("no topic")
    message = Message(
        own_topic,
        body,
        tag=_text(fields, "tags"),
        keys=tuple(keys),
        properties=properties,
        delay_level=_number(fields, "delayLevel", 0),
        flag=_number(fields, "flag", -(2**31)),
    )
    sharding_key = _text(fields, "shardingKey")
    if fields:
        raise ValueError(f"unknown field {min(fields)}")
    return message, sharding_key


def _body(fields: dict[str, Any]) -> bytes:
    text = _text(fields, "body")
    encoded = _text(fields, "bodyBase64")
    if (text is None) == (encoded is None):
        raise ValueError("one of body and bodyBase64 is needed")
    if text is not None:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise ValueError("body has half of a surrogate pair") from None
    assert encoded is not None, "one of them is there"
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ValueError("bodyBase64 is not base64") from None


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value or None if name != "body" else value


def _number(fields: dict[str, Any], name: str, low: int) -> int:
    value = fields.pop(name, 0)
    if type(value) is not int or not low <= value < 2**31:
        raise ValueError(f"{name} is not a number from {low}")
    return value
