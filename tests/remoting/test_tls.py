"""TLS by first byte: modes, deadlines, limits and draining, with real handshakes."""

import re
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trio
import trio.testing
import trustme
from attrs import evolve
from structlog.testing import capture_logs

from tests.remoting.serving import echo, read_command, served_pipe, serving
from trioha.errors import ConfigError
from trioha.net.tls import ServerTls, TlsFiles, client_context, server_context
from trioha.remoting.client import ClientSecurity, ConnectionLostError, open_client
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import request
from trioha.remoting.connections import Connections
from trioha.remoting.server import RemotingServer, ServerLimits
from trioha.remoting.wrong_port import NO_TLS, WANTS_TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority, tmp_path_factory):
    return issued(authority, tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture
def tls(files):
    return ServerTls(server_context(files))


def issued(authority, folder, name, *, until=None):
    certificate = authority.issue_cert(name, not_after=until)
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return TlsFiles(folder / "cert.pem", folder / "key.pem", authority=folder / "ca.pem")


def trusting(files):
    return client_context(files.authority, key="--tls-ca")


async def asked_over(address, context, body=b"body"):
    async with open_client(address, security=ClientSecurity(tls=context)) as client:
        return bytes((await client.request(request(310, body=body))).body)


async def test_one_port_serves_many_requests_with_and_without_tls(tls, files):
    async with serving(tls=tls) as (server, address):
        assert await asked_over(address, trusting(files)) == b"body"
        assert await asked_over(address, None) == b"body"
        large = bytes(3_000_000)
        async with open_client(address, security=ClientSecurity(tls=trusting(files))) as client:
            got = set()

            async def ask(number):
                body = bytes(number) + b"%d" % number if number else large
                got.add((number, (await client.request(request(310, body=body))).body == body))

            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon(ask, number)
        assert got == {(number, True) for number in range(300)}
        assert (server.statistics.tls_connections, server.statistics.tls_failures) == (2, 0)
        assert server.statistics.requests == 302


async def test_enforcing_tells_plain_connections_that_it_wants_tls_and_closes_them(tls, files):
    async with serving(tls=evolve(tls, is_required=True)) as (server, address):
        with capture_logs() as lines, pytest.raises(ConnectionLostError, match=re.escape(WANTS_TLS)):
            await asked_over(address, None)
        assert "enforcing" in lines[0]["reason"]
        assert await asked_over(address, trusting(files)) == b"body"
        assert (server.statistics.requests, server.statistics.tls_failures) == (1, 1)


async def test_without_tls_a_handshake_is_closed(files):
    async with serving() as (server, address):
        with (
            capture_logs(),
            pytest.raises(ConnectionLostError, match=re.escape(f"cannot connect: TLS: {NO_TLS}")),
        ):
            await asked_over(address, trusting(files))
        assert await asked_over(address, None) == b"body"
        assert server.statistics.protocol_errors == 1


async def test_a_client_refuses_a_certificate_of_another_authority_or_host(tmp_path, authority, files):
    (tmp_path / "a").mkdir()
    other = issued(authority, tmp_path / "a", "other.example")
    async with serving(tls=ServerTls(server_context(other))) as (server, address):
        with capture_logs():
            with pytest.raises(ConnectionLostError, match="IP address mismatch"):
                await asked_over(address, trusting(files))
            (tmp_path / "b").mkdir()
            strange = issued(trustme.CA(), tmp_path / "b", "127.0.0.1")
            with pytest.raises(ConnectionLostError, match="TLS: "):
                await asked_over(address, trusting(strange))
        # RocketMQ's clients verify nothing by default.
        assert await asked_over(address, client_context(None, key="tls.enable")) == b"body"
        assert server.statistics.tls_connections >= 1


async def test_a_client_refuses_a_certificate_that_has_expired(tmp_path, authority, files):
    yesterday = datetime.now(UTC) - timedelta(days=1)
    expired = issued(authority, tmp_path, "127.0.0.1", until=yesterday)
    async with serving(tls=ServerTls(server_context(expired))) as (_, address):
        with capture_logs(), pytest.raises(ConnectionLostError, match="certificate has expired"):
            await asked_over(address, trusting(files))


async def test_a_certificate_of_the_client_may_be_required(files, authority):
    required = ServerTls(server_context(evolve(files, verify_mode=ssl.CERT_REQUIRED)))
    async with serving(tls=required) as (server, address):
        with capture_logs(), pytest.raises(ConnectionLostError):
            await asked_over(address, trusting(files))
        known = trusting(files)
        authority.issue_cert("client.example").configure_cert(known)
        assert await asked_over(address, known) == b"body"
        assert server.statistics.requests == 1


# -- in virtual time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent", [b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x40\x00" + bytes(1000)]
)
async def test_a_handshake_that_does_not_go_on_ends_at_its_deadline(sent, tls, autojump_clock):
    server = RemotingServer(echo, tls=evolve(tls, handshake_timeout_s=10.0))
    async with served_pipe(server) as stream:
        await trio.sleep(5)
        await stream.send_all(sent)
        with capture_logs() as lines:
            assert await stream.receive_some() == b""
    assert trio.current_time() == 15.0
    assert [line["reason"] for line in lines] == ["no TLS handshake in 10 s"]
    assert (server.statistics.tls_failures, server.statistics.connections_open) == (1, 0)


async def test_a_trickle_does_not_prolong_a_handshake(tls, autojump_clock):
    server = RemotingServer(echo, tls=tls)
    async with served_pipe(server) as stream:

        async def trickle():
            for byte in b"\x16\x03\x01\x02\x00\x01" + bytes(500):
                await stream.send_all(bytes([byte]))
                # Never at the moment of the deadline.
                await trio.sleep(0.7)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            with capture_logs():
                while await stream.receive_some():
                    pass
            nursery.cancel_scope.cancel()
    assert trio.current_time() == 10.0


async def test_a_connection_that_sends_nothing_ends_at_the_idle_timeout(tls, autojump_clock):
    server = RemotingServer(echo, tls=tls, connections=Connections(ServerLimits(idle_timeout_s=120)))
    async with served_pipe(server) as stream:
        assert await stream.receive_some() == b""
    assert trio.current_time() == 120.0
    assert server.statistics.idle_closes == 1


async def test_idle_and_frame_timeouts_hold_with_tls(tls, files, autojump_clock):
    limits = ServerLimits(idle_timeout_s=120, frame_timeout_s=30)
    server = RemotingServer(echo, tls=tls, connections=Connections(limits))
    for sent, timeout_s in ((b"", 120.0), (encode(request(310, body=bytes(100)))[:50], 30.0)):
        start_s = trio.current_time()
        async with served_pipe(server) as stream:
            client = trio.SSLStream(
                stream, trusting(files), server_hostname="127.0.0.1", https_compatible=True
            )
            await client.do_handshake()
            await client.send_all(sent)
            with capture_logs():
                assert await client.receive_some() == b""
        assert trio.current_time() - start_s == timeout_s
    assert (server.statistics.idle_closes, server.statistics.frame_timeouts) == (1, 1)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16" + bytes(200),
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x16\x03\x00\x00\x02\x01\x00",
        b"\x16\x03\x01\x00\x05GET /",
        b"\x16" * 5000,
    ],
)
async def test_hostile_handshakes_end_their_own_connection_only(sent, tls, autojump_clock):
    server = RemotingServer(echo, tls=tls)
    async with served_pipe(server) as good, served_pipe(server) as bad:
        with capture_logs() as lines:
            try:
                await bad.send_all(sent)
                while await bad.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        await good.send_all(encode(request(310, body=b"fine")))
        answer = await read_command(good)
    assert answer.body == b"fine"
    assert not any("exc_info" in line for line in lines)
    assert (server.statistics.bugs, server.statistics.tls_failures) == (0, 1)


async def test_connections_in_their_handshake_count_and_draining_ends_them(tls, autojump_clock):
    server = RemotingServer(echo, tls=tls)
    async with served_pipe(server) as silent, served_pipe(server) as started:
        await started.send_all(b"\x16\x03\x01\x02\x00")
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.connections_open == 2
        await server.drain()
        assert trio.current_time() == 0.0
        assert server.statistics.connections_open == 0
        assert await silent.receive_some() == await started.receive_some() == b""


async def test_draining_answers_requests_in_flight_and_says_goodbye(tls, files, autojump_clock):
    async def slow(asked, peer):
        await trio.sleep(1)
        return echo(asked, peer)

    server = RemotingServer(slow, tls=tls)
    async with served_pipe(server) as stream:
        client = trio.SSLStream(stream, trusting(files), server_hostname="127.0.0.1")
        await client.do_handshake()
        await client.send_all(encode(request(310, body=b"last")))
        decoder = FrameDecoder()
        async with trio.open_nursery() as nursery:
            await trio.sleep(0.5)
            nursery.start_soon(server.drain)
            # Without https_compatible the end of the stream needs a close_notify alert.
            while data := await client.receive_some():
                decoder.feed(data)
            await client.aclose()
    answer = decoder.next_command()
    assert answer.body == b"last"
    assert server.statistics.cut_connections == 0


async def test_a_server_reads_no_more_from_a_drained_peer_that_goes_on_sending(tls, files, autojump_clock):
    server = RemotingServer(echo, tls=tls)
    async with served_pipe(server) as stream:
        client = trio.SSLStream(stream, trusting(files), server_hostname="127.0.0.1", https_compatible=True)
        await client.do_handshake()
        await client.send_all(encode(request(310)))
        assert await client.receive_some()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            for _ in range(100):
                try:
                    await client.send_all(encode(request(310, body=bytes(1000))))
                except trio.BrokenResourceError:
                    break
                await trio.sleep(0.1)
            else:
                pytest.fail("the connection is still open")
    assert server.statistics.requests == 1
    assert server.statistics.bugs == 0


# -- files --------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_used_is_one_line_that_names_its_key(files, tmp_path, authority):
    missing = tmp_path / "missing.pem"
    with pytest.raises(ConfigError, match=r"tls.server.keyPath: .*missing.pem cannot be read"):
        server_context(evolve(files, key=missing))
    with pytest.raises(ConfigError, match=r"tls.server.certPath: .* are not a certificate and its key"):
        server_context(evolve(files, key=files.certificate))
    assert files.authority is not None
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"tls.server.trustCertPath: .* has no certificates"):
        server_context(evolve(files, authority=tmp_path / "empty.pem"))
    with pytest.raises(ConfigError, match=r"--tls-ca: .*missing\.pem cannot be read"):
        client_context(missing, key="--tls-ca")


async def test_a_key_may_have_a_password(files, tmp_path):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"pass word"),
        )
    )
    # Without the password nothing is asked on the terminal.
    for wrong in (None, "", "other"):
        with pytest.raises(ConfigError, match=r"tls\.server\.keyPassword is that of the key"):
            server_context(evolve(files, key=encrypted, key_password=wrong))
    tls = ServerTls(server_context(evolve(files, key=encrypted, key_password="pass word")))
    async with serving(tls=tls) as (_, address):
        assert await asked_over(address, trusting(files)) == b"body"
