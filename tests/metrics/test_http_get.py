"""A server of HTTP/1.1 answers GET and HEAD of its pages and bounds everything else, in virtual time."""

import random

import h11
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair

from tests.levels import by_level
from tests.waiting import until
from trioha.metrics.http_get import GetServer, HttpLimits, Page
from trioha.net.descriptors import OpenGate

BODY = b"one 1\ntwo 2\n"


def page(query):
    return Page("text/x-test", BODY + query.accept.encode())


def broken(query):
    raise RuntimeError("no page today")


@pytest.fixture
def server():
    return GetServer({"/metrics": page, "/broken": broken})


async def ask(server, request, *, ends=False):
    """All that the server sends for the bytes of a request; `ends`: its peer closes its side then."""
    async with trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()

        async def serve():
            await server.serve_stream(theirs, "10.0.0.1:5")
            await theirs.aclose()

        nursery.start_soon(serve)
        await ours.send_all(request)
        if ends:
            await ours.send_eof()
        answer = b""
        async for data in ours:
            answer += data
        await ours.aclose()
    return answer


def parse(answer, *, method=b"GET"):
    """Status, headers and body, as a client of another hand reads them."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    client.receive_data(b"")
    response, body = None, b""
    while not isinstance(event := client.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA
        if isinstance(event, h11.Response):
            response = event
        else:
            body += event.data
    return response.status_code, dict(response.headers), body


def request(line="GET /metrics HTTP/1.1", *headers):
    return "\r\n".join((line, "Host: node", *headers, "", "")).encode("latin-1")


async def test_a_page_is_served_once_and_the_connection_is_closed(server, autojump_clock):
    answer = await ask(server, request("GET /metrics HTTP/1.1", "Accept: a/b", "Accept: c/d") * 2)
    status, headers, body = parse(answer)
    assert (status, body) == (200, BODY + b"a/b,c/d")
    assert headers[b"content-type"] == b"text/x-test"
    assert headers[b"connection"] == b"close"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert server.statistics.answers == {200: 1}


@pytest.mark.parametrize(
    ("line", "status", "allow"),
    [
        ("GET /metrics?name=x HTTP/1.1", 200, None),
        ("GET http://node:9100/metrics?x HTTP/1.1", 200, None),
        ("GET /metrics HTTP/1.0", 200, None),
        ("GET / HTTP/1.1", 404, None),
        ("GET /metrics/ HTTP/1.1", 404, None),
        ("GET * HTTP/1.1", 404, None),
        ("GET http:// HTTP/1.1", 404, None),
        ("CONNECT node:9100 HTTP/1.1", 404, None),
        ("POST /metrics HTTP/1.1", 405, b"GET, HEAD"),
        ("DELETE /metrics HTTP/1.1", 405, b"GET, HEAD"),
        ("OPTIONS /metrics HTTP/1.1", 405, b"GET, HEAD"),
        ("get /metrics HTTP/1.1", 405, b"GET, HEAD"),
        ("CONNECT /metrics HTTP/1.1", 405, b"GET, HEAD"),
    ],
)
async def test_path_and_method_decide(server, autojump_clock, line, status, allow):
    found, headers, _ = parse(await ask(server, request(line)))
    assert (found, headers.get(b"allow")) == (status, allow)


@pytest.mark.parametrize("path", ["/metrics", "/other", "/broken"])
async def test_head_has_the_headers_of_get_and_no_body(server, autojump_clock, path):
    with capture_logs():
        get = parse(await ask(server, request(f"GET {path} HTTP/1.1")))
        head = parse(await ask(server, request(f"HEAD {path} HTTP/1.1")), method=b"HEAD")
    assert (head[0], head[1], head[2]) == (get[0], {**get[1], b"date": head[1][b"date"]}, b"")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nA b: c\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nA: \x00\r\n\r\n", 400),
        (b"GET /" + b"a" * 20_000, 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 4000, 431),
    ],
)
async def test_what_is_no_request_is_answered_and_closed(server, autojump_clock, raw, status):
    answer = await ask(server, raw)
    found, _, body = parse(answer)
    assert found == status
    # Nothing that a peer sent comes back.
    assert b"aaaa" not in body
    assert server.statistics.answers == {status: 1}


async def test_a_request_may_come_in_single_bytes(server, autojump_clock):
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs, "peer")
        for byte in request():
            await ours.send_all(bytes([byte]))
            await trio.sleep(0.01)
        with trio.fail_after(1):
            assert (await ours.receive_some(100)).startswith(b"HTTP/1.1 200 OK\r\n")
        await ours.aclose()


async def test_a_request_has_5_s_however_often_a_byte_comes(server, autojump_clock):
    ours, theirs = memory_stream_pair()
    began_s = trio.current_time()

    async def drip():
        while True:
            await ours.send_all(b"a")
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        await server.serve_stream(theirs, "peer")
        nursery.cancel_scope.cancel()
    assert trio.current_time() == began_s + 5.0
    assert server.statistics.request_timeouts == 1
    assert server.statistics.answers == {}


class Unread(trio.abc.HalfCloseableStream):
    """A peer that has sent a request and does not read the answer."""

    def __init__(self):
        self._request = request()

    async def receive_some(self, max_bytes=None):
        data, self._request = self._request, b""
        return data

    async def send_all(self, data):
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self):
        await trio.sleep_forever()

    async def send_eof(self):
        raise AssertionError("the answer was not sent")

    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def test_an_answer_has_10_s(server, autojump_clock):
    began_s = trio.current_time()
    await server.serve_stream(Unread(), "peer")
    assert trio.current_time() == began_s + 10.0
    assert server.statistics.send_timeouts == 1


@pytest.mark.parametrize(("body_bytes", "lasts_s"), [(30_000, 1.0), (100_000, 0.0)])
async def test_a_body_is_dropped_for_a_second_or_64_kib(server, autojump_clock, body_bytes, lasts_s):
    ours, theirs = memory_stream_pair()
    await ours.send_all(request("POST /metrics HTTP/1.1", "Content-Length: 10000000") + bytes(body_bytes))
    began_s = trio.current_time()
    # The peer keeps its side open.
    await server.serve_stream(theirs, "peer")
    assert trio.current_time() == began_s + lasts_s
    assert parse(bytes(await ours.receive_some()))[0] == 405


async def test_a_peer_that_closes_without_a_request_is_not_answered(server, autojump_clock):
    assert await ask(server, b"", ends=True) == b""
    assert server.statistics.answers == {}


async def test_a_page_that_fails_is_answered_500_and_logged(server, autojump_clock):
    with capture_logs() as lines:
        status, _, body = parse(await ask(server, request("GET /broken HTTP/1.1")))
    assert (status, body) == (500, b"the page failed: see the node's log\n")
    assert b"today" not in body
    assert [line["event"] for line in lines] == ["HTTP connection closed by a fault of this program"]
    assert server.boundary.bugs == 1


@pytest.mark.sized
async def test_mutated_requests_end_in_an_answer_or_in_silence_and_never_in_a_fault(server, autojump_clock):
    draw = random.Random(3)
    whole = request("GET /metrics HTTP/1.1", "Accept: text/plain;version=0.0.4", "Connection: keep-alive")
    for _ in range(by_level(300, 2_000, 20_000)):
        raw = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            place = draw.randrange(len(raw))
            match draw.randrange(4):
                case 0:
                    raw[place] = draw.randrange(256)
                case 1:
                    del raw[place : place + draw.randrange(1, 20)]
                    raw += b"\r\n"
                case 2:
                    raw[place:place] = draw.choice((b"\r\n", b"\n", b"\x00", b" ", b":", b"Host: b\r\n"))
                case 3:
                    raw[place:place] = bytes([draw.randrange(256)]) * draw.randrange(1, 3000)
        answer = await ask(server, bytes(raw), ends=True)
        if answer:
            assert parse(answer, method=b"HEAD" if raw.startswith(b"HEAD ") else b"GET")[0] in {
                *(200, 400, 404, 405, 413, 431, 501),
            }
    assert server.boundary.bugs == 0
    assert server.statistics.request_timeouts == 0
    assert len(server.statistics.answers) >= 4


# -- sockets -----------------------------------------------------------------------------------------------


async def is_served(port, **options):
    async with await trio.open_tcp_stream("127.0.0.1", port, **options) as stream:
        await stream.send_all(request())
        assert (await stream.receive_some(100)).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_one_connection_more_than_the_maximum_is_closed_at_once_and_others_are_served_after(nursery):
    server = GetServer({"/metrics": page}, limits=HttpLimits(connections_max=3, connections_per_peer_max=2))
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(lambda task_status: server.serve(listeners, gate=OpenGate(), task_status=task_status))
    port = listeners[0].socket.getsockname()[1]
    with trio.fail_after(60):
        held = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        await until(lambda: server.statistics.connections_open == 2)
        async with await trio.open_tcp_stream("127.0.0.1", port) as refused:
            assert await refused.receive_some(1) == b""
        assert server.statistics.connections_refused == 1
        # Another address has a place.
        await is_served(port, local_address="127.0.0.2")
        for stream in held:
            await stream.aclose()
        await until(lambda: not server.statistics.connections_open)
        await is_served(port)
    nursery.cancel_scope.cancel()
