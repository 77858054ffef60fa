"""Processes with access control, TLS and the second port for clients."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from tests.node.wire import Wire, send_to
from tests.node_process import TriohaNode, run_node, run_trioha
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.errors import PeerError
from trioha.net.tls import client_context
from trioha.remoting.client import ClientSecurity, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.name_server import fetch_broker_groups
from trioha.remoting.signature import Credentials, signed

pytestmark = pytest.mark.process

ACCOUNT = "accounts: [{accessKey: account-1, secretKey: secret-1, defaultTopicPerm: PUB}]\n"


def sent(address: str, *options: str | Path) -> dict[str, Any]:
    answer = run_trioha("load", "--json", "--broker", address, "--count", "3", *options)
    result: dict[str, Any] = json.loads(answer.stdout)
    return result


def test_rules_are_read_again_while_a_node_serves(tmp_path, start_node):
    rules, tools = tmp_path / "plain_acl.yml", tmp_path / "tools.yml"
    rules.write_text(ACCOUNT)
    tools.write_text("accessKey: account-1\nsecretKey: secret-1\n")
    node = start_node(role="ASYNC_MASTER", aclEnable="true", **{"trioha.aclFile": rules})
    assert sent(node.listen_address, "--credentials", tools)["statuses"] == {"PUT_OK": 3}
    refused = sent(node.listen_address)
    assert refused["statuses"] == {"SYSTEM_ERROR": 3}
    assert "No accessKey is configured" in refused["remarks"]["SYSTEM_ERROR"]
    found = run_trioha("status", "--json", "--credentials", tools, node.listen_address)
    assert json.loads(found.stdout)["brokers"][0]["aclRefusals"] == 3
    shown = run_trioha("status", "--wide", "--credentials", tools, node.listen_address)
    assert "requests refused by access control: 3" in " ".join(shown.stdout.split())
    assert run_trioha("status", node.listen_address).exit_code == 1

    rules.write_text("accounts: [")
    node.wait_logged("the rules of access control stay as they were")
    assert sent(node.listen_address, "--credentials", tools)["statuses"] == {"PUT_OK": 3}

    rules.write_text(ACCOUNT.replace("account-1", "account-2"))
    node.wait_logged("the rules of access control have changed")
    refused = sent(node.listen_address, "--credentials", tools)
    assert "No acl config for account-1" in refused["remarks"]["SYSTEM_ERROR"]
    # One line for the bad file, no traceback.
    assert node.log().count("stay as they were") == 1
    assert "Traceback" not in node.log()


def test_a_message_that_is_named_by_its_offset_needs_its_own_topic(tmp_path, start_node):
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(
        "accounts:\n"
        "- {accessKey: account-1, secretKey: secret-1, defaultTopicPerm: PUB}\n"
        "- {accessKey: account-2, secretKey: secret-2, topicPerms: [Mine=SUB], groupPerms: [mine=SUB]}\n"
    )
    owner, reader = Credentials("account-1", "secret-1"), Credentials("account-2", "secret-2")
    node = start_node(role="ASYNC_MASTER", aclEnable="true", **{"trioha.aclFile": rules})
    with Wire(node.listen_address) as wire:

        def answers(topic: str, properties: str = "") -> list[str | None]:
            """The remarks of a send-back and of a view of a message of this topic."""
            stored = wire.ask(signed(send_to(topic, b"body", properties=properties), owner))
            fields = {
                "offset": str(int(stored.ext_fields["msgId"][16:], 16)),
                "group": "mine",
                "delayLevel": "1",
            }
            asked = (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.VIEW_MESSAGE_BY_ID)
            return [wire.ask(signed(request(code, ext_fields=fields), reader)).remark for code in asked]

        assert answers("Mine") == [None, None]
        refusal = "org.apache.rocketmq.acl.common.AclException: No default permission for topic:Theirs"
        assert answers("Theirs") == [refusal, refusal]
        # It waits in another topic until its time.
        assert answers("Theirs", "DELAY\x0118\x02") == [refusal, refusal]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"aclEnable": "true", "trioha.aclFile": "missing.yml"}, "missing.yml: cannot be read: No such file"),
        ({"aclEnable": "true", "trioha.aclFile": "bad.yml"}, "bad.yml:1: accounts: is not a list"),
        (
            {"tls.server.certPath": "missing.pem", "tls.server.keyPath": "missing.pem"},
            "missing.pem cannot be read: No such file",
        ),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_start_with_one_line(tmp_path, settings, said):
    (tmp_path / "bad.yml").write_text("accounts: 7\n")
    files = {key: tmp_path / value if "." in value else value for key, value in settings.items()}
    answer = run_node(tmp_path / "store", role="ASYNC_MASTER", **files)
    assert answer.exit_code != 0
    assert f"{tmp_path}/{said}" in answer.stderr.splitlines()[-1]
    # Nothing was made before the error.
    assert not (tmp_path / "store").exists()


@pytest.mark.full
def test_a_node_listens_on_its_second_port_too(start_node):
    port = free_port()
    node = start_node(role="ASYNC_MASTER", listenPort=port)
    assert sent(node.listen_address)["statuses"] == {"PUT_OK": 3}
    assert sent(f"127.0.0.1:{port - 2}")["statuses"] == {"PUT_OK": 3}


@pytest.fixture
def authority(tmp_path):
    """A folder's ca.pem; server.pem beside it is its certificate for 127.0.0.1."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


def enforcing(authority: Path) -> dict[str, Any]:
    """Settings of a node with a name server of its own that serves TLS only."""
    return {
        "namesrvAddr": f"127.0.0.1:{free_port()}",
        "trioha.withNamesrv": "true",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": authority.with_name("server.pem"),
        "tls.server.keyPath": authority.with_name("server.pem"),
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority,
    }


@pytest.mark.full
def test_a_node_that_enforces_tls_serves_and_registers_with_its_own_name_server(start_node, authority):
    settings = enforcing(authority)
    node = start_node(role="ASYNC_MASTER", **settings)
    assert sent(node.listen_address, "--tls-ca", authority)["statuses"] == {"PUT_OK": 3}
    assert run_trioha("status", "--tls-ca", authority, node.listen_address).exit_code == 0
    assert run_trioha("status", node.listen_address).exit_code == 1

    async def registered() -> set[str]:
        security = ClientSecurity(tls=client_context(authority, key="--tls-ca"))
        async with open_client(settings["namesrvAddr"], security=security) as client:
            return {group.broker_name for group in await fetch_broker_groups(client)}

    wait_until(lambda: trio.run(registered) == {"interop"})


@pytest.mark.full
def test_a_renewed_certificate_is_used_without_a_restart(tmp_path, start_node, authority):
    pem = authority.with_name("server.pem")
    settings = {"tls.server.certPath": pem, "tls.server.keyPath": pem}
    node = start_node(role="ASYNC_MASTER", **settings)
    assert sent(node.listen_address, "--tls-ca", authority)["statuses"] == {"PUT_OK": 3}

    # Half of a renewal is reported once, and the old certificate stays.
    old = pem.read_bytes()
    pem.write_bytes(b"-----BEGIN CERTIFICATE-----\n")
    node.wait_logged("the certificate for clients stays as it was")
    assert sent(node.listen_address, "--tls-ca", authority)["statuses"] == {"PUT_OK": 3}
    pem.write_bytes(old)
    node.wait_logged("the certificate for clients was renewed")

    renewed = trustme.CA()
    renewed.cert_pem.write_to_path(tmp_path / "renewed-ca.pem")

    async def renew() -> None:
        """A connection of the old certificate goes on, the next one has the new one."""
        security = ClientSecurity(tls=client_context(authority, key="--tls-ca"))
        other = ClientSecurity(tls=client_context(tmp_path / "renewed-ca.pem", key="--tls-ca"))
        async with open_client(node.listen_address, security=security) as client:
            renewed.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
            with trio.fail_after(60):
                while True:
                    try:
                        async with open_client(node.listen_address, security=other) as another:
                            await another.request(request(RequestCode.GET_BROKER_CONFIG), timeout_s=10)
                            break
                    except PeerError:
                        await trio.sleep(0.1)
            answer = await client.request(request(RequestCode.GET_BROKER_CONFIG), timeout_s=10)
            assert answer.code == ResponseCode.SUCCESS

    trio.run(renew)
    assert "Traceback" not in node.log()


def issue(authority: trustme.CA, folder: Path) -> dict[str, Any]:
    """A certificate for HA in a folder, in place of one that is there; its settings."""
    folder.mkdir(exist_ok=True)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "node.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {
        "trioha.haTlsCert": folder / "node.pem",
        "trioha.haTlsKey": folder / "node.pem",
        "trioha.haTlsCa": folder / "ca.pem",
    }


@pytest.mark.full
def test_renewed_certificates_for_ha_and_authorities_are_used_without_a_restart(tmp_path, start_node):
    """Of a master, of its slave, and of what the slave trusts when it asks its master for the tables."""
    old, renewed = trustme.CA(), trustme.CA()
    ports = {name: tmp_path / f"{name}-files" for name in ("master", "slave")}
    settings = {name: issue(old, folder) for name, folder in ports.items()}
    pem, ca = ports["master"] / "node.pem", ports["slave"] / "ca.pem"
    served = {"tls.server.certPath": pem, "tls.server.keyPath": pem}
    port, ha_port = free_port(), free_port()

    def start_master() -> TriohaNode:
        return start_node(
            "master",
            role="ASYNC_MASTER",
            listenPort=port,
            haListenPort=ha_port,
            **settings["master"],
            **served,
        )

    master = start_master()
    slave = start_node(
        "slave",
        role="SLAVE",
        ha_master_address=f"127.0.0.1:{ha_port}",
        **settings["slave"],
        **{"tls.enable": "true", "tls.client.authServer": "true", "tls.client.trustCertPath": ca},
        **{"trioha.masterAddress": f"127.0.0.1:{port}", "trioha.metadataSyncFirst": 50},
        **{"trioha.metadataSyncPeriod": 100},
    )
    master.wait(connections=1)
    for name, node in (("master", master), ("slave", slave)):
        issue(renewed, ports[name])
        node.wait_logged("the certificate for HA was renewed")
    slave.wait_logged("the authority of servers was renewed")
    # The connection of the old certificates goes on; the master's next process has renewed ones only.
    assert master.status().connections
    master.kill()
    master = start_master()
    master.wait(connections=1)
    changes = topic_changes(slave)
    assert sent(master.listen_address, "--topic", "Renewed", "--tls-ca", ca)["statuses"] == {"PUT_OK": 3}
    slave.wait(max_offset=master.max_offset)
    wait_until(lambda: topic_changes(slave) > changes, "the slave copies the topics of its master")
    assert "Traceback" not in slave.log()


def topic_changes(slave: TriohaNode) -> int:
    """How often the copy of the master's topics has changed the slave's."""
    metadata = slave.status().metadata
    assert metadata is not None
    return metadata.tables["topics"].changes


def expired_certificate(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1))


@pytest.mark.full
@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        (expired_certificate, "certificate has expired"),
        (lambda authority: authority.issue_cert("example.org"), "certificate is not valid for '127.0.0.1'"),
        (lambda _: trustme.CA().issue_cert("127.0.0.1"), "unable to get local issuer certificate"),
    ],
)
def test_a_client_refuses_a_certificate_and_says_why(tmp_path, start_node, certificate, said):
    """Expired, of another host, of another authority: for clients of commands and nodes alike."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate(authority).private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    files = dict.fromkeys(("tls.server.certPath", "tls.server.keyPath"), tmp_path / "server.pem")
    node = start_node(role="ASYNC_MASTER", **files)
    refused = run_trioha("status", "--tls-ca", tmp_path / "ca.pem", node.listen_address)
    assert refused.exit_code == 1
    assert said in " ".join((refused.stdout + refused.stderr).split())


@pytest.mark.full
def test_a_client_without_a_certificate_is_refused_where_one_is_needed(tmp_path, start_node, authority):
    settings = {
        **enforcing(authority),
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": authority,
    }
    settings = {
        key: value for key, value in settings.items() if key not in {"trioha.withNamesrv", "namesrvAddr"}
    }
    node = start_node(role="ASYNC_MASTER", **settings)
    refused = run_trioha("status", "--tls-ca", authority, node.listen_address)
    assert refused.exit_code == 1
    assert "TLS" in refused.stdout + refused.stderr or "certificate" in refused.stdout + refused.stderr
    assert "Traceback" not in node.log()


@pytest.mark.full
def test_commands_that_are_clients_sign_and_encrypt(tmp_path, start_node, authority):
    rules, tools = tmp_path / "plain_acl.yml", tmp_path / "tools.yml"
    rules.write_text(
        "accounts:\n"
        "- {accessKey: account-1, secretKey: secret-1, defaultTopicPerm: PUB|SUB, groupPerms: [group-1=SUB]}"
        "\n- {accessKey: account-2, secretKey: secret-2, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}\n"
    )
    tools.write_text("accessKey: account-1\nsecretKey: secret-1\n")
    (tmp_path / "all-groups.yml").write_text("accessKey: account-2\nsecretKey: secret-2\n")
    settings = {**enforcing(authority), "aclEnable": "true", "trioha.aclFile": rules}
    node = start_node(role="ASYNC_MASTER", **settings)
    names = ("--namesrv", settings["namesrvAddr"])
    signed = ("--credentials", tools, "--tls-ca", authority)

    def produced(*options: str | Path) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "trioha", "produce", *names, "--topic", "T", *map(str, options)],
            input=b"one\ntwo\n",
            capture_output=True,
            timeout=60,
            check=False,
        )

    def is_registered() -> bool:
        return produced(*signed).returncode == 0

    wait_until(is_registered)
    unsigned = produced("--tls-ca", authority, "--attempts", "1")
    assert unsigned.returncode == 1
    assert b"No accessKey is configured" in unsigned.stderr
    plain = produced("--credentials", tools, "--attempts", "1")
    assert plain.returncode != 0

    found = run_trioha("consume", "T", *names, "--from", "first", "--group", "group-1", *signed)
    assert {json.loads(line)["body"] for line in found.stdout.splitlines()} == {"one", "two"}
    refused = run_trioha("consume", "T", *names, "--from", "first", "--group", "group-2", *signed)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "No default permission for group:group-2" in refused.stderr
    # Without a group of its own it names one that the account has no permission for.
    refused = run_trioha("consume", "T", *names, "--from", "first", *signed)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "No default permission for group:" in refused.stderr

    every = ("--credentials", tmp_path / "all-groups.yml", "--tls-ca", authority)
    loaded = sent(node.listen_address, "--consume", *every)
    assert (loaded["statuses"], loaded["consumed"]["received"]) == ({"PUT_OK": 3}, 3)
    assert "Traceback" not in node.log()
