"""The requests of a name server (docs/protocol/remoting.md#name-server).

Answers are of the version of the peer that asks: one before 5.0 gets the bodies of RocketMQ 4.9. Beyond 4.9,
which leaves them without an answer, requests that are not known get REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

import structlog
import trio

from trioha.config.values import InvalidValue
from trioha.errors import RemoteProtocolError
from trioha.metadata.registration import (
    NAME_CHARS_MAX,
    Registration,
    body_crc,
    parse_data_version,
    parse_registration,
)
from trioha.namesrv.answers import (
    cluster_body,
    in_zone,
    kv_table_body,
    member_group_body,
    parse_queue_datas,
    route_body,
    topic_list_body,
)
from trioha.namesrv.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from trioha.namesrv.registry import (
    BROKER_TIMEOUT_S,
    UNIT,
    UNIT_SUBSCRIPTION,
    BrokerIdentity,
    BrokerRemovedError,
    BrokerRequest,
    Registry,
    RegistryFullError,
)
from trioha.namesrv.settings import FixedSettingError, NameServerSettings, settings_text, updated
from trioha.net.threads import run_in_thread
from trioha.numbers import NATURAL64
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.fastjson import format_json, parse_json
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer

log = structlog.get_logger(__name__)

BROKER_TIMEOUT_S_MAX: Final = 24 * 3600.0
"""A broker that asks for a longer silence is given this."""
ZONE_MODE: Final = "__ZONE_MODE"
ZONE_NAME: Final = "__ZONE_NAME"
LARGE_BODY_BYTES: Final = 64 * 1024
"""A longer body, of some 400 topics, is not parsed in the event loop's thread."""
SMALL_BODY_BYTES_MAX: Final = 64 * 1024
"""Of requests that have settings or a version in their body."""

Answer = RemotingCommand | Awaitable[RemotingCommand | None]
_Handler = Callable[[RemotingCommand, Peer], Answer]


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause the collector of cyclic garbage, which blocks all threads.

    While so many objects are made as a large registration has, it would look through all of them several
    times. A pause within another one may end early, never late.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _without_collection(read: Callable[[], Registration]) -> Callable[[], Registration]:
    def run() -> Registration:
        with _collection_paused():
            return read()

    return run


def _read_registration(body: bytes | memoryview, *, crc: int, compressed: bool, version: int) -> Registration:
    """The body of REGISTER_BROKER. Raises BadRequestError if its checksum is another, RemoteProtocolError."""
    if crc not in {0, body_crc(body)}:
        raise BadRequestError("crc32 not match")
    return parse_registration(body, compressed=compressed, version=version)


def _identity(fields: HeaderFields) -> BrokerIdentity:
    return BrokerIdentity(
        fields.text("clusterName"),
        fields.text("brokerName"),
        fields.text("brokerAddr"),
        fields.number("brokerId", NATURAL64),
    )


class NameServerProcessor:
    """The handler of a name server's remoting server."""

    def __init__(self, registry: Registry, kv: KvConfig, settings: NameServerSettings) -> None:
        self.registry = registry
        self.settings = settings
        """As they are now: UPDATE_NAMESRV_CONFIG changes them."""
        self._kv = kv
        self._parsing = trio.CapacityLimiter(1)
        self._changing_topics = trio.Lock()
        """Held while the topics of a large registration are merged: other changes of topics wait for it."""
        self._registering: set[str] = set()
        """Broker names whose topics are being merged."""
        self._handlers: dict[int, _Handler] = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._in_turn(self._delete_topic),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._in_turn(self._register_topic),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._in_turn(self._wipe_write_perm),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._in_turn(self._add_write_perm),
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_list,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    def __call__(self, request: RemotingCommand, peer: Peer) -> Answer:
        """The response to `request`, or an awaitable of it."""
        handler = self._handlers.get(request.code)
        if handler is None:
            return response_to(
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {request.code} not supported",
            )
        with _refusals(peer):
            return handler(request, peer)

    def _in_turn(self, handler: _Handler) -> _Handler:
        """A handler that changes topics: not between two slices of a registration."""

        def handle(request: RemotingCommand, peer: Peer) -> Answer:
            return wait(request, peer) if self._changing_topics.locked() else handler(request, peer)

        async def wait(request: RemotingCommand, peer: Peer) -> RemotingCommand | None:
            async with self._changing_topics:
                with _refusals(peer):
                    answer = handler(request, peer)
            assert not isinstance(answer, Awaitable), "a handler that changes topics does not wait itself"
            return answer

        return handle

    # -- brokers ---------------------------------------------------------------------------------------

    def _register(self, request: RemotingCommand, peer: Peer) -> Answer:
        fields = HeaderFields(request.ext_fields)
        identity = _identity(fields)
        crc = fields.number("bodyCrc32", NATURAL64, default=0)
        is_compressed = fields.flag("compressed")
        read = partial(_read_registration, crc=crc, compressed=is_compressed, version=request.version)
        is_large = is_compressed or len(request.body) > LARGE_BODY_BYTES
        if is_large or identity.broker_name in self._registering:
            return self._register_in_slices(request, peer, identity, partial(read, bytes(request.body)))
        steps = self._take(request, peer, identity, read(request.body))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer: RemotingCommand = end.value
                return answer

    async def _register_in_slices(
        self,
        request: RemotingCommand,
        peer: Peer,
        identity: BrokerIdentity,
        read: Callable[[], Registration],
    ) -> RemotingCommand:
        """Parse thousands of topics in a thread and merge them in slices: others are answered meanwhile.

        One registration at a time is parsed, and one is merged. Cancelled between two slices, the broker has
        the topics of those that are done; its connection is closed then, and it is removed.
        """
        with _refusals(peer):
            registration = await run_in_thread(_without_collection(read), limiter=self._parsing)
            async with self._changing_topics:
                self._registering.add(identity.broker_name)
                try:
                    with (
                        _collection_paused(),
                        closing(self._take(request, peer, identity, registration)) as steps,
                    ):
                        while True:
                            try:
                                next(steps)
                            except StopIteration as end:
                                answer: RemotingCommand = end.value
                                return answer
                            await trio.lowlevel.checkpoint()
                finally:
                    self._registering.discard(identity.broker_name)

    def _take(
        self, request: RemotingCommand, peer: Peer, identity: BrokerIdentity, registration: Registration
    ) -> Generator[None, None, RemotingCommand]:
        fields = HeaderFields(request.ext_fields)
        timeout_ms = fields.number(
            "heartbeatTimeoutMillis", NATURAL64, default=round(BROKER_TIMEOUT_S * 1000)
        )
        acting = fields.optional("enableActingMaster")
        is_new = all(live.identity != identity for live in self.registry.live)
        master = yield from self.registry.registering(
            BrokerRequest(
                identity,
                _short(fields.optional("haServerAddr") or "", "haServerAddr"),
                connection=peer.connection,
                acting_master=None if acting is None else acting.lower() == "true",
                timeout_s=min(timeout_ms / 1000, BROKER_TIMEOUT_S_MAX),
                zone_name=_short(fields.optional(ZONE_NAME) or "", ZONE_NAME),
                refuses_single_topic=request.version >= Version.V5_0_0,
            ),
            registration,
            deletes_absent=self.settings.delete_topic_with_broker_registration,
        )
        if master is None:
            raise BadRequestError("register broker failed")
        if is_new:
            log.info(
                "broker registered",
                cluster=identity.cluster_name,
                broker=identity.broker_name,
                broker_id=identity.broker_id,
                address=identity.address,
                topics=len(registration.topics),
            )
        answer = {}
        if master.address is not None:
            answer = {"haServerAddr": master.ha_address or "", "masterAddr": master.address}
        body = b""
        if self.settings.return_order_topic_config_to_broker:
            table = self._kv.namespace(ORDER_TOPIC_CONFIG)
            body = b"" if table is None else kv_table_body(table)
        return response_to(request, ResponseCode.SUCCESS, ext_fields=answer, body=body)

    def _unregister(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        identity = _identity(HeaderFields(request.ext_fields))
        if self.registry.unregister(identity):
            log.info("broker unregistered", broker=identity.broker_name, address=identity.address)
        return response_to(request, ResponseCode.SUCCESS)

    def _query_data_version(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        asked = parse_data_version(_small_json(request)) if request.body else None
        is_changed, known = self.registry.query_data_version(
            _identity(HeaderFields(request.ext_fields)), asked
        )
        body = b""
        if known is not None:
            body = format_json(known.as_known_to(request.version).to_json(), bare_keys=False).encode()
        return response_to(
            request,
            ResponseCode.SUCCESS,
            ext_fields={"changed": "true" if is_changed else "false"},
            body=body,
        )

    def _heartbeat(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = HeaderFields(request.ext_fields)
        timeout_s = None
        if fields.optional("heartbeatTimeoutMills") is not None:
            timeout_s = min(fields.number("heartbeatTimeoutMills", NATURAL64) / 1000, BROKER_TIMEOUT_S_MAX)
        self.registry.heartbeat(
            cluster_name=fields.text("clusterName"), address=fields.text("brokerAddr"), timeout_s=timeout_s
        )
        return response_to(request, ResponseCode.SUCCESS)

    def _member_group(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = HeaderFields(request.ext_fields)
        cluster, name = fields.text("clusterName"), fields.text("brokerName")
        addresses = next(
            (
                group.addresses
                for group in self.registry.groups
                if (group.cluster_name, group.broker_name) == (cluster, name)
            ),
            {},
        )
        return response_to(
            request,
            ResponseCode.SUCCESS,
            remark="not set any response code",
            body=member_group_body(cluster, name, addresses),
        )

    def _cluster_info(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        body = cluster_body(self.registry.groups, self.registry.clusters, version=request.version)
        return response_to(request, ResponseCode.SUCCESS, body=body)

    # -- topics ----------------------------------------------------------------------------------------

    def _route(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = HeaderFields(request.ext_fields)
        topic = fields.text("topic")
        route = self.registry.route(topic, acting_masters=self.settings.support_acting_master)
        if route is None:
            return _no_route(request, topic)
        zone_name = fields.optional(ZONE_NAME)
        if zone_name and fields.flag(ZONE_MODE):
            route = in_zone(route, zone_name)
        order_conf = None
        if self.settings.order_message_enable:
            order_conf = self._kv.get(ORDER_TOPIC_CONFIG, topic)
        body = route_body(
            route,
            version=request.version,
            is_strict=request.version >= Version.V4_9_4 or fields.flag("acceptStandardJsonOnly"),
            order_conf=order_conf,
        )
        return response_to(request, ResponseCode.SUCCESS, body=body)

    def _all_topics(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        return _topic_list(request, self.registry.topics)

    def _topics_by_cluster(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        return _topic_list(
            request, self.registry.topics_of_cluster(HeaderFields(request.ext_fields).text("cluster"))
        )

    def _system_topics(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        topics, address = self.registry.system_topics()
        return _topic_list(request, topics, broker_address=address)

    def _unit_topics(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        match request.code:
            case RequestCode.GET_UNIT_TOPIC_LIST:
                topics = self.registry.topics_by_flags(lambda flags: flags & UNIT != 0)
            case RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST:
                topics = self.registry.topics_by_flags(lambda flags: flags & UNIT_SUBSCRIPTION != 0)
            case _:
                topics = self.registry.topics_by_flags(
                    lambda flags: flags & (UNIT | UNIT_SUBSCRIPTION) == UNIT_SUBSCRIPTION
                )
        return _topic_list(request, topics)

    def _delete_topic(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = HeaderFields(request.ext_fields)
        self.registry.delete_topic(fields.text("topic"), cluster=fields.optional("clusterName") or None)
        return response_to(request, ResponseCode.SUCCESS)

    def _register_topic(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        body = _small_json(request)
        queues = parse_queue_datas(body.get("queueDatas") if isinstance(body, dict) else None)
        self.registry.set_topic(HeaderFields(request.ext_fields).text("topic"), queues)
        return response_to(request, ResponseCode.SUCCESS)

    def _wipe_write_perm(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        return self._change_write_perm(request, self.registry.wipe_write_perm, "wipeTopicCount")

    def _add_write_perm(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        return self._change_write_perm(request, self.registry.add_write_perm, "addTopicCount")

    def _change_write_perm(
        self, request: RemotingCommand, change: Callable[[str], int], field: str
    ) -> RemotingCommand:
        name = HeaderFields(request.ext_fields).text("brokerName")
        count = change(name)
        log.info("write permission of a broker changed", broker=name, topics=count, request=field)
        return response_to(request, ResponseCode.SUCCESS, ext_fields={field: str(count)})

    # -- key-value table and settings ------------------------------------------------------------------

    async def _put_kv(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = HeaderFields(request.ext_fields)
        await self._kv.put(fields.text("namespace"), fields.text("key"), fields.text("value"))
        return response_to(request, ResponseCode.SUCCESS)

    def _get_kv(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = HeaderFields(request.ext_fields)
        namespace, key = fields.text("namespace"), fields.text("key")
        value = self._kv.get(namespace, key)
        if value is None:
            return _not_found(request, f"No config item, Namespace: {_cut(namespace)} Key: {_cut(key)}")
        return response_to(request, ResponseCode.SUCCESS, ext_fields={"value": value})

    async def _delete_kv(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        fields = HeaderFields(request.ext_fields)
        await self._kv.delete(fields.text("namespace"), fields.text("key"))
        return response_to(request, ResponseCode.SUCCESS)

    def _kv_list(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        namespace = HeaderFields(request.ext_fields).text("namespace")
        table = self._kv.namespace(namespace)
        if table is None:
            return _not_found(request, f"No config item, Namespace: {_cut(namespace)}")
        return response_to(request, ResponseCode.SUCCESS, body=kv_table_body(table))

    def _update_config(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        _check_small(request)
        try:
            self.settings = updated(self.settings, bytes(request.body))
        except FixedSettingError as error:
            raise BadRequestError(
                f"Can not update config in black list: {error} needs a restart",
                code=ResponseCode.NO_PERMISSION,
            ) from error
        except InvalidValue as error:
            raise BadRequestError(error.reason) from error
        return response_to(request, ResponseCode.SUCCESS)

    def _get_config(self, request: RemotingCommand, _: Peer) -> RemotingCommand:
        return response_to(request, ResponseCode.SUCCESS, body=settings_text(self.settings))


@contextmanager
def _refusals(peer: Peer) -> Iterator[None]:
    """Answer what cannot be taken with its reason: what is wrong is inside a frame that is not."""
    try:
        yield
    except RemoteProtocolError as error:
        raise BadRequestError(str(error)) from error
    except BrokerRemovedError as error:
        raise BadRequestError(str(error)) from error
    except RegistryFullError as error:
        log.warning("registration refused", peer=str(peer), reason=str(error))
        raise BadRequestError(str(error)) from error


def _topic_list(
    request: RemotingCommand, topics: tuple[str, ...], *, broker_address: str | None = None
) -> RemotingCommand:
    body = topic_list_body(topics, broker_address=broker_address)
    return response_to(request, ResponseCode.SUCCESS, body=body)


def _no_route(request: RemotingCommand, topic: str) -> RemotingCommand:
    page = "https://rocketmq.apache.org/docs/bestPractice/06FAQ"
    if request.version < Version.V5_0_0:
        page = "http://rocketmq.apache.org/docs/faq/"
    return response_to(
        request,
        ResponseCode.TOPIC_NOT_EXIST,
        remark=f"No topic route info in name server for the topic: {_cut(topic)}\n"
        f"See {page} for further details.",
    )


def _not_found(request: RemotingCommand, remark: str) -> RemotingCommand:
    return response_to(request, ResponseCode.QUERY_NOT_FOUND, remark=remark)


def _cut(text: str) -> str:
    return text[:NAME_CHARS_MAX]


def _short(text: str, name: str) -> str:
    if len(text) > NAME_CHARS_MAX:
        raise BadRequestError(f"{name} has {len(text)} characters, more than {NAME_CHARS_MAX}")
    return text


def _check_small(request: RemotingCommand) -> None:
    if len(request.body) > SMALL_BODY_BYTES_MAX:
        raise BadRequestError(f"a body of {len(request.body)} bytes, more than {SMALL_BODY_BYTES_MAX}")


def _small_json(request: RemotingCommand) -> object:
    _check_small(request)
    return parse_json(request.body)
