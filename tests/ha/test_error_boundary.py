"""What one peer causes ends only its connection: an exception in each step, and garbage for TLS."""

import random
import ssl
from contextlib import asynccontextmanager, suppress
from inspect import getattr_static
from ipaddress import ip_network

import pytest
import trio
import trustme

from tests.ha.support import Peer, listening, make_master
from tests.store.support import message, open_log
from tests.waiting import until
from trioha.ha import master as master_module
from trioha.ha.admission import Admission, AdmissionSettings
from trioha.ha.connection import DefaultHaConnection, HaConnection
from trioha.ha.frames import ReportDecoder
from trioha.ha.master import HaMaster
from trioha.ha.meter import ConnectionMeter, LagClock
from trioha.ha.replicas import Replicas
from trioha.ha.slave_progress import SlaveProgress
from trioha.ha.state_changes import StateChanges
from trioha.net.housekeeping import Housekeeping
from trioha.net.outbox import Outbox
from trioha.net.tls import MutualTls
from trioha.net.transport import SocketTransport
from trioha.store.commit_log import CommitLog

STEPS = (
    (Admission, "refusal"),
    (Admission, "slot"),
    (SocketTransport, "from_stream"),
    (SocketTransport, "receive_some"),
    (SocketTransport, "send_now"),
    (HaMaster, "serve_stream"),
    (HaMaster, "_replica_name"),
    (HaMaster, "_count_end"),
    (Housekeeping, "expired"),
    (ReportDecoder, "feed"),
    (HaConnection, "run"),
    (HaConnection, "_publish"),
    (HaConnection, "_handle_report"),
    (HaConnection, "_handle_request"),
    (HaConnection, "_report_refusal"),
    (SlaveProgress, "receive_request"),
    (SlaveProgress, "receive_report"),
    (SlaveProgress, "received"),
    (HaConnection, "_write_log"),
    (HaConnection, "_put_frame"),
    (SlaveProgress, "next_body_bytes"),
    (HaConnection, "_close"),
    (DefaultHaConnection, "_encode_header"),
    (master_module, "format_address"),
    (Replicas, "acknowledge"),
    (Replicas, "forget"),
    (ConnectionMeter, "frame_sent"),
    (LagClock, "appended"),
    (LagClock, "acknowledged"),
    (StateChanges, "publish"),
    (Outbox, "put"),
    (Outbox, "flush"),
    (CommitLog, "read"),
)


class PlantedError(Exception):
    """A bug of this program."""


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path / "commitlog")
    log.append(message())
    yield log
    log.close()


async def request_and_break(port, log):
    """A slave that requests, acknowledges and is refused for an ack of unsent bytes."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    with suppress(trio.BrokenResourceError, EOFError):
        peer = Peer(stream)
        await peer.report(1)
        offset, body = await peer.next_frame()
        await peer.report(offset + len(body))
        await peer.report(offset + len(body) + 1)
        await peer.ended()
    await stream.aclose()


async def in_step(master, log):
    """Wait until the one slave has acknowledged everything."""
    await until(lambda: [one.ack_offset for one in master.connections()] == [log.max_offset])


async def follows(peer, log):
    """Whether a slave in step still receives what is appended."""
    stored = log.append(message())
    with trio.fail_after(10):
        frame = await peer.next_frame()
    await peer.report(stored.end_offset)
    return frame == (stored.physical_offset, bytes(log.read(stored.physical_offset, stored.size)))


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0].__name__.split('.')[-1]}.{step[1]}")
async def test_a_bug_in_any_step_ends_one_connection_and_the_other_slave_continues(log, step, monkeypatch):
    owner, name = step
    master, _, _ = make_master(log, admission=AdmissionSettings(allowed=(ip_network("127.0.0.0/8"),)))
    genuine = getattr(owner, name)
    planted = []

    def fail_once(*args, **kwargs):
        if not planted:
            planted.append(name)
            raise PlantedError(f"in {name}")
        return genuine(*args, **kwargs)

    async with listening(master) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        honest = Peer(stream)
        await honest.report(log.max_offset)
        await in_step(master, log)
        assert await follows(honest, log)
        await in_step(master, log)
        with monkeypatch.context() as patch:
            is_static = isinstance(getattr_static(owner, name), staticmethod)
            is_static |= isinstance(genuine, type(self_less))
            replacement = staticmethod(fail_once) if is_static else fail_once
            patch.setattr(owner, name, replacement)
            with trio.fail_after(10):
                await request_and_break(port, log)
            await until(lambda: planted)
        await until(lambda: len(master._connections) == 1 and master.boundary.bugs == 1)
        assert await follows(honest, log)
        # The port is open as before.
        await request_and_break(port, log)
        assert await follows(honest, log)
        assert master.boundary.bugs == 1


class _Methods:
    def method(self):
        """Bound, as a class method is when it is looked up on its class."""


self_less = _Methods().method


# -- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contexts():
    authority = trustme.CA()
    made = []
    for purpose, name in ((ssl.Purpose.CLIENT_AUTH, "127.0.0.1"), (ssl.Purpose.SERVER_AUTH, "slave")):
        context = ssl.create_default_context(purpose)
        context.verify_mode = ssl.CERT_REQUIRED
        authority.issue_cert(name, common_name=name).configure_cert(context)
        authority.configure_trust(context)
        made.append(context)
    return made


def garbage(client_context):
    """What strangers send to a TLS port: nothing, text, a handshake that is cut or damaged, random bytes."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    rng = random.Random(5)
    yield b""
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield bytes(8)
    for _ in range(20):
        yield hello[: rng.randrange(len(hello))]
        damaged = bytearray(hello)
        damaged[rng.randrange(len(hello))] ^= 1 << rng.randrange(8)
        yield bytes(damaged)
        yield rng.randbytes(rng.randrange(1, 600))


@asynccontextmanager
async def tls_slave(port, client_context):
    tcp = await trio.open_tcp_stream("127.0.0.1", port)
    stream = trio.SSLStream(tcp, client_context, server_hostname="127.0.0.1")
    try:
        await stream.do_handshake()
        yield Peer(stream)
    finally:
        await trio.aclose_forcefully(stream)


async def test_garbage_at_a_tls_port_ends_its_own_connection_only(log, contexts):
    server_context, client_context = contexts
    admission = AdmissionSettings(connections_per_peer_max=64)
    master, _, _ = make_master(log, tls=MutualTls(server_context, client_context), admission=admission)
    async with listening(master) as port, tls_slave(port, client_context) as honest:
        await honest.report(log.max_offset)
        await in_step(master, log)
        strangers = 0
        for data in garbage(client_context):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            with suppress(trio.BrokenResourceError):
                if data:
                    await stream.send_all(data)
                await stream.send_eof()
                with trio.fail_after(10):
                    await Peer(stream).ended()
            await stream.aclose()
            strangers += 1
        assert await follows(honest, log)
        assert sum(one.count for one in master.statistics().probes) == strangers
        assert master.boundary.bugs == 0


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("do_handshake", ssl.CertificateError("planted")),
        ("getpeercert", ValueError("planted")),
        ("receive_some", OSError(5, "x")),
        ("send_all", ssl.SSLError("planted")),
    ],
)
async def test_any_error_of_tls_ends_its_own_connection_only(log, contexts, step, error, monkeypatch):
    server_context, client_context = contexts
    master, _, _ = make_master(log, tls=MutualTls(server_context, client_context))
    planted = []

    def fail_once(self, *args, **kwargs):
        if self._ssl_object.server_side and not planted:
            planted.append(step)
            raise error
        return genuine(self, *args, **kwargs)

    if step == "getpeercert":
        # A method of the ssl module, which trio's stream looks up there.
        owner, name = trio.SSLStream, "__getattr__"
    else:
        owner, name = trio.SSLStream, step
    genuine = getattr(owner, name)
    async with listening(master) as port, tls_slave(port, client_context) as honest:
        await honest.report(log.max_offset)
        await in_step(master, log)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail_once)
            with trio.fail_after(10), suppress(trio.BrokenResourceError, EOFError):
                async with tls_slave(port, client_context) as victim:
                    await victim.report(1)
                    await victim.next_frame()
                    await victim.ended()
        assert planted == [step]
        assert await follows(honest, log)
        async with tls_slave(port, client_context) as another:
            await another.report(1)
            with trio.fail_after(10):
                await another.next_frame()
