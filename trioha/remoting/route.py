"""The route of a topic: its brokers and their queues, as name servers answer it.

See docs/protocol/remoting.md#route.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Final

from attrs import frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import NATURAL32, NATURAL64, Range, parse_int
from trioha.remoting.fastjson import as_text, parse_json, shown

MASTER_ID: Final = 0
BROKERS_MAX: Final = 1024
"""Addresses that are read from one route."""
QUEUES_MAX: Final = 65536
"""Queues of one topic, over all brokers."""
READ: Final = 4
WRITE: Final = 2

_QUEUE_COUNT: Final = Range(0, QUEUES_MAX)
_PERMISSION: Final = Range(0, 0xFFFF)


@frozen(order=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    @classmethod
    def of_key(cls, key: object) -> MessageQueue:
        """Of a key in a map by queue, as `parse_json` gives it. Raises ValueError."""
        if not isinstance(key, tuple):
            raise ValueError(f"{key!r:.100} is not a queue")  # noqa: TRY004 - a peer's mistake
        fields = dict(key)
        try:
            topic, broker_name = str(fields["topic"]), str(fields["brokerName"])
            return cls(topic, broker_name, parse_int(fields["queueId"], NATURAL32))
        except KeyError as error:
            raise ValueError(f"a queue without {error}") from None


@frozen
class QueueData:
    """The queues of a topic on one broker name."""

    broker_name: str
    read_queues: int
    """Queue ids 0 to `read_queues - 1` may be read."""
    write_queues: int
    permission: int
    """Bits READ and WRITE."""


@frozen
class TopicRoute:
    """Brokers and queues of one topic."""

    brokers: Mapping[str, Mapping[int, str]]
    """`host:port` by broker id, by broker name; id 0 is the master."""
    queues: tuple[QueueData, ...]

    def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues that accept messages: those of brokers with a master."""
        return tuple(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in self._with_permission(WRITE)
            if self.master(data.broker_name) is not None
            for queue_id in range(data.write_queues)
        )

    def read_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Queues that may be pulled from, in order."""
        return tuple(
            sorted(
                MessageQueue(topic, data.broker_name, queue_id)
                for data in self._with_permission(READ)
                for queue_id in range(data.read_queues)
            )
        )

    def master(self, broker_name: str) -> str | None:
        """Address of the master; None if there is none."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def pull_address(
        self, broker_name: str, *, broker_id: int = MASTER_ID, avoided: Container[str] = ()
    ) -> str | None:
        """Where to pull from: the broker of that id, else the master, else the slave of the lowest id.

        An `avoided` address is taken only where all addresses are avoided.
        """
        addresses = self.brokers.get(broker_name, {})
        ids = sorted(addresses, key=lambda number: (number != broker_id, number != MASTER_ID, number))
        wanted = [addresses[number] for number in ids]
        return next((address for address in wanted if address not in avoided), next(iter(wanted), None))

    def addresses(self, *, masters_only: bool = False) -> Iterator[str]:
        """Addresses of all brokers."""
        for by_id in self.brokers.values():
            for broker_id, address in by_id.items():
                if broker_id == MASTER_ID or not masters_only:
                    yield address

    def _with_permission(self, permission: int) -> Iterator[QueueData]:
        return (data for data in self.queues if data.permission & permission)


def parse_route(body: bytes | memoryview) -> TopicRoute:
    """The route in an answer to GET_ROUTEINFO_BY_TOPIC.

    Raises RemoteProtocolError for another body, and for a route beyond the limits.
    """
    whole = parse_json(body)
    if not isinstance(whole, dict):
        raise RemoteProtocolError(f"route: not a JSON object: {shown(whole)}")
    brokers: dict[str, Mapping[int, str]] = {}
    left = BROKERS_MAX
    for group in _objects(whole, "brokerDatas"):
        addresses = _addresses(group)
        left -= len(addresses)
        if left < 0:
            raise RemoteProtocolError(f"route: more than {BROKERS_MAX} addresses of brokers")
        brokers[_name(group)] = addresses
    queues = tuple(_queue_data(data) for data in _objects(whole, "queueDatas"))
    if sum(max(data.read_queues, data.write_queues) for data in queues) > QUEUES_MAX:
        raise RemoteProtocolError(f"route: more than {QUEUES_MAX} queues")
    return TopicRoute(brokers, queues)


def _objects(whole: Mapping[object, object], name: str) -> list[Mapping[object, object]]:
    value = whole.get(name)
    if value is None:
        return []
    if (
        not isinstance(value, list)
        or len(value) > BROKERS_MAX
        or not all(isinstance(item, dict) for item in value)
    ):
        raise RemoteProtocolError(f"route: {name} is not a list of at most {BROKERS_MAX} objects")
    return value


def _name(data: Mapping[object, object]) -> str:
    name = data.get("brokerName")
    if name is None:
        raise RemoteProtocolError("route: a broker without brokerName")
    return as_text(name)


def _addresses(group: Mapping[object, object]) -> dict[int, str]:
    value = group.get("brokerAddrs")
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"route: no brokerAddrs of broker {shown(group.get('brokerName'))}")
    found = {}
    for number, address in value.items():
        if not isinstance(address, str):
            raise RemoteProtocolError(f"route: an address is not a text: {shown(address)}")
        found[_number(number, NATURAL64, "broker id")] = address
    return dict(sorted(found.items()))


def _queue_data(data: Mapping[object, object]) -> QueueData:
    return QueueData(
        _name(data),
        _number(data.get("readQueueNums", 0), _QUEUE_COUNT, "readQueueNums"),
        _number(data.get("writeQueueNums", 0), _QUEUE_COUNT, "writeQueueNums"),
        _number(data.get("perm", 0), _PERMISSION, "perm"),
    )


def _number(value: object, within: Range, name: str) -> int:
    try:
        return parse_int(value, within)
    except ValueError as error:
        raise RemoteProtocolError(f"route: {name}: {error}") from None
