"""Admission to the HA port over real sockets: allow-list, limits, first-report deadline, mutual TLS."""

import ssl
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network

import pytest
import trio
import trustme
from attrs import evolve
from cryptography.hazmat.primitives import serialization

from tests.ha.support import SETTINGS, Peer, connected, listening, make_master, make_slave, settled
from tests.store.support import log_bytes, message, open_log
from tests.waiting import until
from trioha.errors import ConfigError
from trioha.ha.admission import Admission, AdmissionSettings
from trioha.ha.probes import ProbeCount
from trioha.net.tls import MutualTls, MutualTlsFiles, mutual_client_context, mutual_server_context
from trioha.recording.events import CloseReason


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path / "master")
    for _ in range(5):
        log.append(message())
    return log


@asynccontextmanager
async def dialled(port):
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield Peer(stream)


async def gets_nothing(peer):
    """The connection ends without a byte."""
    with trio.fail_after(10), suppress(trio.BrokenResourceError):
        assert await peer.stream.receive_some(100) == b""


@pytest.mark.parametrize(
    ("allowed", "host", "admitted"),
    [
        ((), "203.0.113.9", True),
        (("10.0.0.7",), "10.0.0.7", True),
        (("10.0.0.7",), "10.0.0.8", False),
        (("10.0.0.0/24", "::1"), "10.0.0.200", True),
        (("10.0.0.0/24", "::1"), "::1", True),
        (("10.0.0.0/24",), "::ffff:10.0.0.9", True),
        (("10.0.0.0/24",), "fe80::1%eth0", False),
        (("fe80::/10",), "fe80::1%eth0", True),
    ],
)
def test_the_allow_list_may_hold_addresses_and_networks_of_both_families(allowed, host, admitted):
    admission = Admission(AdmissionSettings(allowed=tuple(map(ip_network, allowed))))
    assert (admission.refusal(host) is None) is admitted


def test_connections_are_capped_for_all_and_for_each_peer():
    admission = Admission(AdmissionSettings(connections_max=3, connections_per_peer_max=2))
    with admission.slot("a.1"):
        with admission.slot("a.1"), admission.slot("b.1"):
            assert "of this peer" in admission.refusal("a.1").reason
            assert "haConnectionsMax" in admission.refusal("c.1").reason
        assert admission.refusal("a.1") is None


async def test_a_peer_that_is_not_allowed_gets_no_byte_and_is_counted(log):
    settings = AdmissionSettings(allowed=(ip_network("192.0.2.0/24"),))
    master, _, _ = make_master(log, admission=settings)
    async with listening(master) as port, dialled(port) as peer:
        await gets_nothing(peer)
        assert master.statistics().probes == (ProbeCount("127.0.0.1", CloseReason.NOT_ALLOWED, 1),)
        assert (master.statistics().closed, master.connections()) == ({}, [])


async def test_a_connection_beyond_the_limit_gets_no_byte_and_the_others_stay(log):
    master, _, _ = make_master(log, admission=AdmissionSettings(connections_per_peer_max=1))
    async with listening(master) as port:
        async with dialled(port) as first:
            await first.report(0)
            with trio.fail_after(10):
                await first.next_frame()
            async with dialled(port) as second:
                await gets_nothing(second)
            assert len(master.connections()) == 1
        await until(lambda: not master.connections())
        async with dialled(port) as again:
            await again.report(0)
            with trio.fail_after(10):
                await again.next_frame()


@pytest.mark.parametrize("sent", [b"", b"\0\0\0", b"\xff" * 8])
async def test_a_connection_without_a_request_is_closed_at_the_first_report_deadline(
    log, sent, autojump_clock
):
    master, _, _ = make_master(log, settings=evolve(SETTINGS, first_report_timeout_s=15.0))
    started = trio.current_time()
    async with connected(master) as (peer, reasons):
        await trio.sleep(10)
        if sent:
            await peer.stream.send_all(sent)
        await peer.ended()
        assert trio.current_time() - started == 15.0
    assert reasons == [CloseReason.NO_REQUEST]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x80" + bytes(7),
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"\x7f" * 64,
    ],
)
async def test_a_peer_of_another_protocol_gets_no_byte_of_the_log(log, sent, autojump_clock):
    master, replicas, _ = make_master(log, settings=evolve(SETTINGS, first_report_timeout_s=15.0))
    async with connected(master) as (peer, reasons):
        await peer.stream.send_all(sent)
        received = bytearray()
        while data := await peer.stream.receive_some(65536):
            received += data
    assert reasons[0] in {CloseReason.REQUEST_ABOVE_MAX, CloseReason.BAD_SIZE}
    # At most the header with the end of the log: 12 bytes, none of a message.
    assert len(received) <= 12
    assert replicas.eligible_count(log.max_offset) == 0


# -- mutual TLS ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def files(folder, authority, *names, common_name=None):
    folder.mkdir(parents=True, exist_ok=True)
    issued = authority.issue_cert(*names, common_name=common_name)
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return MutualTlsFiles(
        certificate=folder / "cert.pem", key=folder / "key.pem", authority=folder / "ca.pem"
    )


async def dial_tls(port, tls_files):
    stream = trio.SSLStream(
        await trio.open_tcp_stream("127.0.0.1", port),
        mutual_client_context(tls_files),
        server_hostname="127.0.0.1",
    )
    try:
        await stream.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return stream


async def test_a_slave_replicates_over_mutual_tls_and_is_known_by_its_certificate(log, tmp_path, authority):
    server_files = files(tmp_path / "server", authority, "127.0.0.1", common_name="master")
    slave_files = files(tmp_path / "slave-files", authority, "slave.example", common_name="slave-1")
    master, replicas, events = make_master(log, tls=MutualTls.open(server_files))
    slave_log, _ = open_log(tmp_path / "slave")
    async with listening(master) as port:
        slave, _, _ = make_slave(slave_log, dialer=lambda _: dial_tls(port, slave_files))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slave.run)
            with trio.fail_after(20):
                await replicas.copies(1).reached(log.max_offset)
                log.append(message(b"more"))
                await replicas.copies(1).reached(log.max_offset)
            (connection,) = master._connections.values()
            assert connection.peer.replica == "certificate of slave-1"
            (named,) = [fields for type_, fields in events.facts if type_ == "connection"]
            assert named["certificate"] == "slave-1"
            nursery.cancel_scope.cancel()
    assert log_bytes(slave_log) == log_bytes(log)


async def test_a_peer_without_a_certificate_of_the_authority_gets_no_byte(log, tmp_path, authority):
    server_files = files(tmp_path / "server", authority, "127.0.0.1")
    stranger = files(tmp_path / "stranger", trustme.CA(), "slave.example")
    # It trusts the server, but the server does not trust it.
    trusting = MutualTlsFiles(
        certificate=stranger.certificate, key=stranger.key, authority=server_files.authority
    )
    master, _, _ = make_master(log, tls=MutualTls.open(server_files))
    async with listening(master) as port:
        with trio.fail_after(20), pytest.raises(trio.BrokenResourceError):  # noqa: PT012 - either step may say it
            async with await dial_tls(port, trusting) as stream:
                await stream.send_all(bytes(8))
                assert await stream.receive_some(100)
        async with dialled(port) as plain:
            await plain.report(0)
            # At most a TLS alert, nothing of the log.
            with trio.fail_after(20), pytest.raises((trio.BrokenResourceError, EOFError)):
                await plain.read(100)
            assert len(plain.buffer) < 20
        await until(lambda: sum(one.count for one in master.statistics().probes) == 2)
        assert {one.reason for one in master.statistics().probes} == {CloseReason.NOT_ALLOWED}


async def test_a_slave_does_not_replicate_from_a_master_with_another_name(log, tmp_path, authority):
    server_files = files(tmp_path / "server", authority, "another.example")
    slave_files = files(tmp_path / "slave-files", authority, "slave.example")
    master, _, _ = make_master(log, tls=MutualTls.open(server_files))
    async with listening(master) as port:
        with trio.fail_after(20), pytest.raises(trio.BrokenResourceError) as raised:
            await dial_tls(port, slave_files)
        assert "127.0.0.1" in str(raised.value.__cause__)
        await settled()


def test_an_error_of_a_tls_file_names_its_key(tmp_path, authority):
    good = files(tmp_path, authority, "x.example")
    other = files(tmp_path / "other", authority, "y.example")
    with pytest.raises(ConfigError, match=r"haTlsKey: .*missing.pem cannot be read"):
        mutual_server_context(evolve(good, key=tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match=r"haTlsCert: .*not a certificate and its key"):
        mutual_server_context(evolve(good, key=other.key))
    key = serialization.load_pem_private_key(good.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    # No password is asked on the terminal.
    with pytest.raises(ConfigError, match="the key without a passphrase"):
        mutual_server_context(evolve(good, key=encrypted))
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"haTlsCa: .*has no certificates"):
        mutual_client_context(evolve(good, authority=tmp_path / "empty.pem"))


def test_a_slave_trusts_the_given_authority_and_no_other_of_its_machine(monkeypatch, tmp_path, authority):
    stranger = trustme.CA()
    stranger.cert_pem.write_to_path(tmp_path / "machine.pem")
    # Where OpenSSL looks for the authorities of the machine.
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "machine.pem"))
    context = mutual_client_context(files(tmp_path / "slave", authority, "slave.example"))
    assert context.get_ca_certs(binary_form=True) == [
        ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())
    ]
