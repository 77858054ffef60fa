"""Clients of gRPC with users through Apache's unmodified proxy, which asks a trioha node for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from tests.interop.asking import wait_for_route
from tests.interop.name_server import trioha_name_server
from tests.interop.proxy import grpc_proxy
from tests.interop.rocketmq import NEWEST, missing_tools
from tests.interop.sdks import Sdk, SdkError, opened_sdk
from tests.interop.world import running
from tests.ports import free_port
from tests.users import ALICE, CHECKED, INNER, STATUS_CODES, asked, create_user, entry, put_acl
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(1200)]

CLUSTER: Final = "DefaultCluster"
PROXY: Final = {
    # Signs its own requests with the inner account.
    "enableAclRpcHookForClusterMode": True,
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
    "authorizationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthorizationMetadataProvider",
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
    ),
}


def topic_of(node: str, name: str) -> None:
    """A topic for normal messages."""
    fields = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+message.type=NORMAL",
    }  # fmt: skip
    (answer,) = asked(node, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields))
    assert answer.code == ResponseCode.SUCCESS, answer


def test_clients_of_the_proxy_do_what_their_user_may_at_the_node(tmp_path: Path) -> None:
    if lacking := missing_tools():
        pytest.skip(lacking)
    settings: dict[str, Any] = {
        "brokerName": "broker-t",
        "brokerClusterName": CLUSTER,
        "listenPort": free_port(),
        "authenticationWhitelist": STATUS_CODES,
        **CHECKED,
    }
    with (
        trioha_name_server(tmp_path / "names") as names,
        running(tmp_path / "store", role="ASYNC_MASTER", namesrvAddr=names, **settings) as node,
        grpc_proxy(NEWEST, names, folder=tmp_path / "proxy", cluster=CLUSTER, **PROXY) as proxy,
    ):
        for topic in ("Mine", "Other"):
            topic_of(node.listen_address, topic)
            wait_for_route(names, topic)
        asked(
            node.listen_address,
            create_user(ALICE),
            put_acl(ALICE, entry("Topic:Mine", "Pub", "Sub"), entry("Group:mine", "Sub")),
        )
        with opened_sdk("python", proxy.endpoints, log=tmp_path / "alice.log", user=ALICE) as alice:
            alice("producer", name="p", topics=["Mine"])
            alice("send", name="p", topic="Mine", bodies=["a", "b"])
            alice("simple", name="c", group="mine", topic="Mine")
            found: list[str] = []

            def has_both() -> bool:
                try:
                    received = alice("receive", name="c", number=16, invisible_s=30)
                except SdkError as error:
                    # The proxy has not received the consumer's settings yet.
                    if '"settings" is null' in str(error):
                        return False
                    raise
                found.extend(message["body"] for message in received)
                alice("ack", name="c", bodies=[message["body"] for message in received])
                return len(found) >= 2

            wait_until(has_both, "both messages", within_s=300)
            assert sorted(found) == ["a", "b"]
            refused(alice, tmp_path, "Other", "no permission to access Topic:Other")
        with opened_sdk(
            "python", proxy.endpoints, log=tmp_path / "wrong.log", user=evolve(ALICE, secret_key="wrong")
        ) as wrong:
            wrong("producer", name="p", topics=["Mine"])
            refused(wrong, tmp_path, "Mine", "check signature failed")


def refused(sdk: Sdk, folder: Path, topic: str, reason: str) -> None:
    """A send of the producer `p` fails; why is in the SDK's own log."""
    with pytest.raises(SdkError, match=f"failed to fetch topic:{topic} route"):
        sdk("send", name="p", topic=topic, bodies=["c"])
    assert reason in (folder / "logs/rocketmq_python/rocketmq_client.log").read_text()
