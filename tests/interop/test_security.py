"""RocketMQ's own clients with signatures and TLS against a node that requires both."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tests.interop.java import JavaDriver, JavaError
from tests.interop.world import StartNode
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

RULES = """\
accounts:
- {accessKey: the-admin, secretKey: secret-a, admin: true}
- accessKey: producer-only
  secretKey: secret-p
  topicPerms: [Orders=PUB]
- accessKey: worker-account
  secretKey: secret-w
  topicPerms: [Orders=PUB|SUB]
  defaultGroupPerm: SUB
"""


def test_signed_clients_do_what_their_account_may(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    (tmp_path / "plain_acl.yml").write_text(RULES)
    names = f"127.0.0.1:{free_port()}"
    node = start_node(
        "broker",
        role="ASYNC_MASTER",
        namesrvAddr=names,
        aclEnable="true",
        **{"trioha.withNamesrv": "true", "trioha.aclFile": tmp_path / "plain_acl.yml"},
    )
    with pytest.raises(JavaError, match="No accessKey is configured"):
        java.produce(names, 1, topic="Orders")
    with (
        java.secured("worker-account", "wrong-secret"),
        pytest.raises(JavaError, match="Check signature failed for accessKey=worker-account"),
    ):
        java.produce(names, 1, topic="Orders")
    with java.secured("producer-only", "secret-p"):
        assert java.produce(names, 5, topic="Orders") == {"SEND_OK": 5}
        with pytest.raises(JavaError, match="No default permission for topic:Other"):
            java.produce(names, 1, topic="Other")
    with java.secured("worker-account", "secret-w"):
        java.produce(names, 3, topic="Orders")
        assert len(java.consumed(names, 8, group="workers", topic="Orders")) == 8, node.log()
    with java.secured("the-admin", "secret-a"):
        # A query by key, which a real broker with ACL refuses. Both messages are consumed, and the index has
        # a message after its queue.
        found = ""

        def are_found() -> bool:
            nonlocal found
            found = java.mqadmin("queryMsgByKey", names, "-t", "Orders", "-k", "key2")
            assert "AclException" not in found
            return len([line for line in found.splitlines() if line.strip()]) >= 3

        wait_until(are_found, "both messages are found by their key")
        assert len([line for line in found.splitlines() if "Message ID" not in line and line.strip()]) == 2, (
            found
        )


@pytest.mark.parametrize("mode", [pytest.param("permissive", marks=pytest.mark.nightly), "enforcing"])
def test_clients_with_tls_send_and_consume(
    java: JavaDriver, start_node: StartNode, tmp_path: Path, mode: str
) -> None:
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    names = f"127.0.0.1:{free_port()}"
    node = start_node(
        "broker",
        role="ASYNC_MASTER",
        namesrvAddr=names,
        **{
            "trioha.withNamesrv": "true",
            "tls.server.mode": mode,
            "tls.server.certPath": tmp_path / "server.pem",
            "tls.server.keyPath": tmp_path / "server.pem",
            "tls.enable": "true",
        },
    )
    with java.secured(tls=True):
        assert java.produce(names, 8, topic="Secret") == {"SEND_OK": 8}, node.log()
        assert len(java.consumed(names, 8, group="encrypted", topic="Secret")) == 8, node.log()
    if mode == "permissive":
        assert len(java.consumed(names, 8, group="plain", topic="Secret")) == 8, node.log()
    else:
        with pytest.raises(JavaError):
            java.produce(names, 1, topic="Secret")


def test_a_producer_with_the_vip_channel_sends_to_the_second_port(
    java: JavaDriver, start_node: StartNode
) -> None:
    names, port = f"127.0.0.1:{free_port()}", free_port()
    settings = {"namesrvAddr": names, "trioha.withNamesrv": "true", "listenPort": port}
    node = start_node("broker", role="ASYNC_MASTER", **settings)
    with java.secured(vip=True):
        assert java.produce(names, 4, topic="Orders") == {"SEND_OK": 4}, node.log()
