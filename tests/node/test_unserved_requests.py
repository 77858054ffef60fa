"""Requests that a node does not serve, on a live node: lite topics, the proxy's, later ones."""

import pytest
import trio

from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = pytest.mark.process

LITE_CODES = tuple(range(200070, 200080))
"""Topics of lite consumers."""
LATER_CODES = (0, -1, 5001, 900_000, 2**31 - 1, -(2**31))
FIELDS = {
    "topic": "TopicTest", "consumerGroup": "group", "queueId": "-1", "maxMsgNums": "32",
    "invisibleTime": "60000", "pollTime": "15000", "bornTime": "1700000000000", "initMode": "0", "exp": "*",
    "expType": "TAG", "extraInfo": "0 1 60000 0 0 broker 0", "offset": "0",
}  # fmt: skip


def test_consumption_of_lite_topics_and_unknown_requests_get_the_code_of_a_broker_without_them(start_node):
    node = start_node(role="ASYNC_MASTER")

    async def ask_all() -> None:
        async with open_client(node.listen_address) as client:
            for code in (*LITE_CODES, *LATER_CODES):
                for body in (b"", b'{"topic":"TopicTest","consumerGroup":"group","strategyName":"AVG"}'):
                    answer = await client.request(request(code, ext_fields=FIELDS, body=body), timeout_s=30)
                    assert (answer.code, answer.remark) == (
                        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                        f" request type {code} not supported",
                    )
            # The connection goes on.
            answer = await client.request(request(RequestCode.GET_BROKER_HA_STATUS), timeout_s=30)
            assert answer.code == ResponseCode.SUCCESS

    trio.run(ask_all)
    assert "Traceback" not in node.log()
    node.stop()
