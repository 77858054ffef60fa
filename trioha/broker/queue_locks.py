"""LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: which client of a group consumes a queue in order.

See docs/protocol/remoting.md#clients-and-groups.

A lock is a lease of `LEASE_S` that its client renews every 20 s. A client that has lost its connection goes
on consuming what it has for up to `CLIENT_LEASE_S` after its last renewal, and then stops by itself: so long
its locks outlive their connection, so that no other client consumes beside it. Locks that are over are swept
out; nothing else waits for them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Final, NamedTuple, TypeVar

import trio
from attrs import define, frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import I32, parse_int
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.remoting.serving import Peer

LEASE_S: Final = 60.0
CLIENT_LEASE_S: Final = 30.0
"""How long a client trusts a lock (rocketmq.client.rebalance.lockMaxLiveTime)."""
SWEEP_INTERVAL_S: Final = 10.0
QUEUES_MAX: Final = 10_000
"""Queues of one request."""
TEXT_CHARS_MAX: Final = 512
_LIMITS: Final = JsonLimits(containers_max=QUEUES_MAX + 10, dialect_chars_max=64 * 1024)
_BODY_BYTES_MAX: Final = 4 * 1024 * 1024


@frozen
class MessageQueue:
    """A queue as clients name it."""

    broker_name: str
    topic: str
    queue_id: int

    def to_json(self) -> dict[str, object]:
        """Its JSON object."""
        return {"brokerName": self.broker_name, "queueId": self.queue_id, "topic": self.topic}


_Key = tuple[str, str, int]
_Owner = TypeVar("_Owner", str, int)


@define
class _Lock:
    client_id: str
    connection: int
    renewed_s: float
    lease_s: float

    def is_over(self, now_s: float) -> bool:
        return now_s > self.renewed_s + self.lease_s


def _discard(index: defaultdict[_Owner, set[_Key]], of: _Owner, key: _Key) -> None:
    keys = index[of]
    keys.discard(key)
    if not keys:
        del index[of]


class QueueLocks:
    """All locks of a broker. Run it."""

    def __init__(self, *, locks_max: int) -> None:
        self._locks_max = locks_max
        self._locks: dict[_Key, _Lock] = {}
        """By group, topic and queue id."""
        self._by_connection: defaultdict[int, set[_Key]] = defaultdict(set)
        self._by_group: defaultdict[str, set[_Key]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._locks)

    def lock(
        self, group: str, client_id: str, queues: list[MessageQueue], *, connection: int
    ) -> list[MessageQueue]:
        """Lock or renew the queues for a client; those that are its own now."""
        now_s = trio.current_time()
        mine = []
        for queue in queues:
            key = (group, queue.topic, queue.queue_id)
            if self._lock(key, client_id, connection=connection, now_s=now_s):
                mine.append(queue)
        return mine

    def _lock(self, key: _Key, client_id: str, *, connection: int, now_s: float) -> bool:
        held = self._locks.get(key)
        if held is None:
            if len(self._locks) >= self._locks_max:
                return False
        elif held.client_id != client_id and not held.is_over(now_s):
            return False
        else:
            self._remove(key)
        self._locks[key] = _Lock(client_id, connection, now_s, LEASE_S)
        self._by_connection[connection].add(key)
        self._by_group[key[0]].add(key)
        return True

    def has_locks(self, group: str) -> bool:
        """Whether the group consumes in order: a client of it holds a lock."""
        now_s = trio.current_time()
        return any(not self._locks[key].is_over(now_s) for key in self._by_group.get(group, ()))

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        """Give up the client's locks of these queues."""
        for queue in queues:
            key = (group, queue.topic, queue.queue_id)
            held = self._locks.get(key)
            if held is not None and held.client_id == client_id:
                self._remove(key)

    def connection_ended(self, connection: int) -> None:
        """Its locks end when their client stops by itself."""
        for key in self._by_connection.get(connection, ()):
            self._locks[key].lease_s = CLIENT_LEASE_S

    def _remove(self, key: _Key) -> None:
        lock = self._locks.pop(key)
        _discard(self._by_connection, lock.connection, key)
        _discard(self._by_group, key[0], key)

    async def run(self) -> None:
        """Remove expired locks, until cancelled."""
        while True:
            await trio.sleep(SWEEP_INTERVAL_S)
            now_s = trio.current_time()
            for key in [key for key, lock in self._locks.items() if lock.is_over(now_s)]:
                self._remove(key)

    # -- requests --------------------------------------------------------------------------------------

    def answer_lock(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        """The response to LOCK_BATCH_MQ. Raises BadRequestError."""
        group, client_id, queues = asked_locks(request)
        locked = self.lock(group, client_id, queues, connection=peer.connection)
        body = json.dumps(
            {"lockOKMQSet": [queue.to_json() for queue in locked]}, separators=(",", ":"), ensure_ascii=False
        )
        return response_to(request, ResponseCode.SUCCESS, body=body.encode("utf-8", "replace"))

    def answer_unlock(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """The response to UNLOCK_BATCH_MQ. Raises BadRequestError."""
        self.unlock(*asked_locks(request))
        return response_to(request, ResponseCode.SUCCESS)


class AskedLocks(NamedTuple):
    """What LOCK_BATCH_MQ and UNLOCK_BATCH_MQ ask for."""

    group: str
    client_id: str
    queues: list[MessageQueue]


def asked_locks(request: RemotingCommand) -> AskedLocks:
    """Of the body of a request. Raises BadRequestError."""
    if len(request.body) > _BODY_BYTES_MAX:
        raise BadRequestError(f"a body of {len(request.body)} bytes; at most {_BODY_BYTES_MAX} are accepted")
    try:
        body = parse_json(request.body, limits=_LIMITS)
    except RemoteProtocolError as error:
        raise BadRequestError(str(error)) from None
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a JSON object")
    queues = body.get("mqSet") or []
    if not isinstance(queues, list):
        raise BadRequestError("mqSet is not a list")
    return AskedLocks(
        _text(body, "consumerGroup"),
        _text(body, "clientId"),
        [_queue(queue) for queue in queues],
    )


def _queue(value: object) -> MessageQueue:
    if not isinstance(value, dict):
        raise BadRequestError("mqSet has something other than queues")
    try:
        queue_id = parse_int(value.get("queueId"), I32)
    except ValueError as error:
        raise BadRequestError(f"queueId of mqSet: {error}") from None
    return MessageQueue(_text(value, "brokerName"), _text(value, "topic"), queue_id)


def _text(value: dict[object, object], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or len(text) > TEXT_CHARS_MAX:
        raise BadRequestError(f"{name} is missing or long")
    return text
