"""Handshakes that stall or are garbage, and rules that are replaced while requests run, on live nodes."""

import base64
import json
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter, deque
from contextlib import ExitStack
from functools import partial
from typing import Final

import pytest
import trio
import trustme

from tests.node.client import Client, endpoint
from tests.node_process import run_trioha
from tests.waiting import wait_until
from trioha.net.descriptors import raise_descriptor_limit
from trioha.remoting.client import ClientSecurity, open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.send_message import SendMessageRequestHeader, put_status_name, send_request
from trioha.remoting.signature import Credentials

pytestmark = [
    pytest.mark.full,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs ulimit and all of 127.0.0.0/8"),
]

DESCRIPTORS: Final = 1024
STRANGERS: Final = 450
"""Fewer than the places that the node has with so many descriptors: all of them are served."""
ANSWER_S: Final = 30.0


@pytest.fixture(autouse=True)
def _limit_raised():
    """Raises this process's own limit for the sockets of the strangers."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def start(start_node):
    """Starts a master with so many descriptors."""
    shell = ["bash", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "bash", sys.executable, "-m", "trioha"]
    return partial(start_node, "broker", role="ASYNC_MASTER", program=shell)


def client_hello():
    """The first bytes of a client that really speaks TLS."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="broker")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def strangers_to(address, beginnings):
    """Connections from several addresses that send their first bytes and then nothing."""
    with ExitStack() as strangers:
        for number in range(STRANGERS):
            stranger = socket.create_connection(
                endpoint(address), timeout=ANSWER_S, source_address=(f"127.0.0.{2 + number % 4}", 0)
            )
            strangers.enter_context(stranger)
            stranger.sendall(beginnings[number % len(beginnings)])
        return strangers.pop_all()


def counters(node):
    """The counters of clients in the runtime table."""

    async def ask():
        async with open_client(node.listen_address) as client:
            answer = await client.request(request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=ANSWER_S)
        prefix = "trioha.clients."
        table = json.loads(answer.whole_body)["table"]
        return {
            key.removeprefix(prefix): int(value) for key, value in table.items() if key.startswith(prefix)
        }

    return trio.run(ask)


async def send(client, topic="T"):
    """The status and the remark of a message."""
    header = SendMessageRequestHeader("P", topic, "TBW102", 4, 0, 0, time.time_ns() // 1_000_000, 0)
    answer = await client.request(send_request(header, b"body"), timeout_s=ANSWER_S)
    return put_status_name(answer), answer.remark or ""


def test_stalled_and_garbled_handshakes_end_at_their_deadline_and_hold_up_no_client(tmp_path, start):
    authority = trustme.CA()
    pem = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    node = start(
        **{"tls.server.certPath": tmp_path / "server.pem", "tls.server.keyPath": tmp_path / "server.pem"}
    )
    hello = client_hello()
    garbage = [b"\x16" + bytes(range(200)), b"\x16\x03\x01\x00\x04\xff\xff\xff\xff", b"\x16" * 5000]
    stalled = [b"\x16", hello[:40], hello]
    with Client(node.listen_address) as plain:
        assert plain.send(20) == {"PUT_OK": 20}
        with strangers_to(node.listen_address, garbage + stalled):
            assert plain.send(200) == {"PUT_OK": 200}
            # New clients are served beside them, with and without TLS.
            answer = run_trioha(
                "load", "--json", "--broker", node.listen_address, "--count", "50",
                "--tls-ca", tmp_path / "ca.pem",
            )  # fmt: skip
            assert json.loads(answer.stdout)["statuses"] == {"PUT_OK": 50}
            with Client(node.listen_address) as another:
                assert another.send(20) == {"PUT_OK": 20}
            # The strangers hang on; the node has closed them all when their handshakes have ended.
            wait_until(lambda: counters(node)["tlsFailures"] >= STRANGERS, "strangers are closed")
        assert plain.send(20) == {"PUT_OK": 20}
        # The plain client, and the one that asks.
        wait_until(lambda: counters(node)["connectionsOpen"] == 2, "connections of strangers are closed")
        found = counters(node)
    assert found["tlsFailures"] == STRANGERS
    assert found["tlsConnections"] == 1
    assert (found["bugs"], found["shortages"]) == (0, 0)
    # Lines about strangers are limited, and none is a traceback.
    assert "Traceback" not in node.log()
    assert node.log().count("TLS handshake") < STRANGERS / 5
    node.stop()


MANY: Final = 10_000
STALLING: Final = """
import base64, sys, trio

host, port, first, count, hello = sys.argv[1], *map(int, sys.argv[2:5]), base64.b64decode(sys.argv[5])

async def stall(number):
    endpoint = trio.socket.socket()
    try:
        await endpoint.bind((f"127.0.{1 + number // 250}.{1 + number % 250}", 0))
        await endpoint.connect((host, port))
        await endpoint.send(hello)
        while await endpoint.recv(4096):
            pass
    except ConnectionError:
        # Refused with its bytes unread.
        pass
    finally:
        endpoint.close()

async def main():
    async with trio.open_nursery() as nursery:
        for number in range(first, first + count):
            nursery.start_soon(stall, number)

trio.run(main)
"""
"""Connections that begin a handshake and then wait until the node closes them, each from its own address."""


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_ten_thousand_handshakes_that_stall_leave_the_node_alive_and_its_clients_served(tmp_path, start):
    """In processes of 500, since each has few descriptors, as the node has. Places that are left are few: of
    new clients some are refused until the handshakes have ended."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    node = start(
        **{"tls.server.certPath": tmp_path / "server.pem", "tls.server.keyPath": tmp_path / "server.pem"}
    )
    host, port = endpoint(node.listen_address)
    hello = base64.b64encode(client_hello())
    with Client(node.listen_address) as plain, ExitStack() as processes:
        strangers = [
            processes.enter_context(
                subprocess.Popen([sys.executable, "-c", STALLING, host, *map(str, (port, first, 500)), hello])
            )
            for first in range(0, MANY, 500)
        ]
        processes.callback(lambda: [one.kill() for one in strangers])
        while any(one.poll() is None for one in strangers):
            assert plain.send(50) == {"PUT_OK": 50}
        assert [one.returncode for one in strangers] == [0] * len(strangers)
        wait_until(lambda: counters(node)["connectionsOpen"] == 2, "connections of strangers are closed")
        answer = run_trioha(
            "load",
            "--json",
            "--broker",
            node.listen_address,
            "--count",
            "50",
            "--tls-ca",
            tmp_path / "ca.pem",
        )
        assert json.loads(answer.stdout)["statuses"] == {"PUT_OK": 50}
        found = counters(node)
    assert found["tlsFailures"] + found["connectionsRefused"] == MANY
    assert found["tlsFailures"] > STRANGERS
    assert (found["bugs"], found["shortages"]) == (0, 0)
    assert "Traceback" not in node.log()
    assert len(node.log()) < 100_000
    node.stop()


def account(name, permission):
    return f"- {{accessKey: {name}, secretKey: secret-of-{name}, defaultTopicPerm: {permission}}}\n"


STEADY: Final = "accounts:\n" + account("permanent", "PUB|SUB")
VERSIONS: Final = (
    STEADY + account("changing", "PUB"),
    STEADY,
    STEADY + account("changing", "DENY"),
    "accounts: [",
    "",
    STEADY + account("changing", "PUB") + account("changing", "PUB"),
    "\x00\xff not YAML",
)
DENIED: Final = "No default permission for topic:T"
EXPECTED: Final = frozenset(("PUT_OK", "No acl config for changing", DENIED))


def test_rules_that_are_replaced_while_requests_run_are_old_or_new_and_never_a_mixture(tmp_path, start):
    """An account that all usable versions have is always served; another one as some version says."""
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(VERSIONS[0])
    node = start(aclEnable="true", **{"trioha.aclFile": rules})
    latest: deque[str] = deque(maxlen=50)
    """Outcomes of the account that changes."""
    denied = trio.Event()
    """Set when they were all refusals."""
    outcomes: dict[str, Counter[str]] = {"permanent": Counter(), "changing": Counter()}

    def replace(number):
        content = VERSIONS[number % len(VERSIONS)].encode("latin-1")
        match number % 3:
            case 0:
                rules.with_suffix(".new").write_bytes(content)
                rules.with_suffix(".new").replace(rules)
            case 1:
                rules.write_bytes(content)
            case _:
                rules.unlink()
                # In pieces, as an editor or a slow copy does.
                with rules.open("wb") as file:
                    for piece in (content[:20], content[20:]):
                        file.write(piece)
                        file.flush()

    async def produce(name):
        security = ClientSecurity(Credentials(name, f"secret-of-{name}"))
        async with open_client(node.listen_address, security=security) as client:
            while True:
                status, remark = await send(client)
                reason = remark.partition("AclException: ")[2].partition(", see")[0].strip()
                outcome = reason or status
                outcomes[name][outcome] += 1
                if name == "changing":
                    latest.append(outcome)
                    if latest.count(DENIED) == latest.maxlen:
                        denied.set()

    async def run():
        nonlocal denied
        async with trio.open_nursery() as nursery:
            for name in outcomes:
                nursery.start_soon(produce, name)
            # Each version stays in the file until the node has judged it, or for a part of that time.
            for number in range(14):
                replace(number)
                await trio.sleep(1.6 if number % 2 else 0.3)
            # The last version holds.
            replace(2)
            latest.clear()
            denied = trio.Event()
            with trio.fail_after(ANSWER_S):
                await denied.wait()
            nursery.cancel_scope.cancel()

    trio.run(run)
    assert set(outcomes["permanent"]) == {"PUT_OK"}
    assert set(outcomes["changing"]) <= EXPECTED
    assert len(outcomes["changing"]) >= 2
    assert "stay as they were" in node.log()
    assert "Traceback" not in node.log()
    node.stop()
