"""The live source over real sockets, against peers that speak remoting well, badly, or not at all."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from attrs import evolve

from tests.monitor.builders import connection
from tests.monitor.watching import Watch
from trioha.broker_status import BrokerStatus
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import response_to
from trioha.remoting.ha_runtime_info import encode_ha_status
from trioha.remoting.wrong_port import UNANSWERED
from trioha_monitor.live import FeedTimes, LiveSettings, live_views
from trioha_monitor.view import Health

TIMES = FeedTimes(
    interval_s=0.02, refresh_s=0.02, request_timeout_s=20.0, back_off_s_min=0.02, back_off_s_max=0.05
)
IMPATIENT = evolve(TIMES, request_timeout_s=0.3)
"""For peers that never answer."""
Peer = Callable[[trio.SocketStream], Awaitable[None]]

STATUS = BrokerStatus(
    version="trioha 0.1.0", role="SYNC_MASTER", cluster_name="DefaultCluster", broker_name="broker-a",
    broker_id=0, min_offset=0, max_offset=5000, flushed_offset=4950, ha_address="127.0.0.1:10912",
    in_sync_slaves=1, connections=(connection("127.0.0.1:40000", sent=5000, ack=4900, lag=100),),
)  # fmt: skip


async def each_request(stream, answer):
    decoder = FrameDecoder()
    async for data in stream:
        decoder.feed(data)
        while (command := decoder.next_command()) is not None:
            await stream.send_all(answer(command))


TABLE = b'{"table":{"putTps":"5.0 1.0 0.1"}}'


def status_of(command):
    if command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
        return encode(response_to(command, ResponseCode.SUCCESS, body=TABLE))
    assert command.code == RequestCode.GET_BROKER_HA_STATUS
    return encode(response_to(command, ResponseCode.SUCCESS, body=encode_ha_status(STATUS)))


async def trioha_node(stream):
    await each_request(stream, status_of)


async def half_an_answer(stream):
    def half(command):
        whole = status_of(command)
        return whole[: len(whole) // 2]

    await each_request(stream, half)


async def half_an_answer_and_gone(stream):
    await stream.receive_some(4096)
    await stream.send_all(b"\x00\x00\x01\x00\x00\x00")


async def garbage(stream):
    await stream.receive_some(4096)
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await stream.receive_some(4096)


async def silence(stream):
    async for _ in stream:
        pass


async def hangs_up(stream):
    await stream.receive_some(1)


def knowing(*codes):
    """A server that knows no other requests."""

    def answer(command):
        known = command.code in codes
        code = ResponseCode.SUCCESS if known else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return encode(response_to(command, code))

    async def peer(stream):
        await each_request(stream, answer)

    return peer


no_server_that_is_known = knowing()
a_name_server = knowing(RequestCode.GET_BROKER_CLUSTER_INFO)


def answering(body):
    def answer(command):
        asked_table = command.code == RequestCode.GET_BROKER_RUNTIME_INFO
        return encode(response_to(command, ResponseCode.SUCCESS, body=TABLE if asked_table else body))

    async def peer(stream):
        await each_request(stream, answer)

    return peer


ABSURD = encode_ha_status(STATUS).replace(
    b'"masterCommitLogMaxOffset":5000', b'"masterCommitLogMaxOffset":' + b"9" * 400
)


@asynccontextmanager
async def listening(peer, *, port=0):
    async def serve(stream):
        async with stream:
            try:
                await peer(stream)
            except trio.BrokenResourceError:
                return

    async with trio.open_nursery() as nursery:
        start_serving = partial(trio.serve_tcp, serve, port, host="127.0.0.1")
        listeners = await nursery.start(start_serving)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def node_that(watch, is_so):
    """The watched node as soon as it is as wanted."""
    return (await watch.until(lambda view: is_so(view.nodes[0]))).nodes[0]


@asynccontextmanager
async def watching(port, times=TIMES):
    watch = Watch()
    async with trio.open_nursery() as nursery:
        feed = live_views([f"127.0.0.1:{port}"], settings=LiveSettings(times=times))
        nursery.start_soon(feed, watch.show)
        yield watch
        nursery.cancel_scope.cancel()


async def test_a_node_is_shown_with_its_connection():
    async with listening(trioha_node) as port, watching(port) as watch:
        view = await watch.until(lambda view: view.nodes[0].health is Health.UP)
        (node,) = view.nodes
        assert (node.role, node.label, node.log.max_offset, node.log.flushed_offset) == (
            "SYNC_MASTER", "broker-a #0", 5000, 4950,
        )  # fmt: skip
        assert [(row.address, row.sent_offset, row.ack_offset, row.diff_bytes) for row in view.replicas] == [
            ("127.0.0.1:40000", 5000, 4900, 100)
        ]


async def test_a_node_that_stops_is_down_and_is_up_after_a_restart():
    async with listening(trioha_node) as port:
        pass
    async with watching(port) as watch:
        node = await node_that(watch, lambda node: node.health is Health.DOWN)
        assert node.reason == "Connection refused"
        for _ in range(2):
            async with listening(trioha_node, port=port):
                await node_that(watch, lambda node: node.health is Health.UP)
            await node_that(watch, lambda node: node.health is Health.DOWN)


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (half_an_answer, "no answer"),
        (silence, "no answer"),
        (half_an_answer_and_gone, "closed the connection"),
        (hangs_up, UNANSWERED),
        (garbage, "this port speaks HTTP"),
        (no_server_that_is_known, "neither a broker nor a name server nor a controller"),
        (a_name_server, "this is a name server (its option is --namesrv): a broker was expected"),
        (answering(b'{"master":"yes"}'), "true or false"),
        (answering(b"{{{"), "JSON"),
        (answering(ABSURD), "masterCommitLogMaxOffset is not an integer"),
    ],
)
async def test_a_wrong_peer_is_down_with_its_reason_and_a_good_one_in_its_place_is_up(peer, reason):
    times = IMPATIENT if reason == "no answer" else TIMES
    async with listening(peer) as port, watching(port, times) as watch:
        node = await node_that(watch, lambda node: node.health is Health.DOWN)
        assert reason in node.reason
    async with listening(trioha_node, port=port), watching(port) as watch:
        await node_that(watch, lambda node: node.health is Health.UP)
