"""Delayed messages of a master whose slave may take its place."""

import trio

from tests.node.role_nodes import SYNC_MASTER, WITHIN_S, role_node, slave_of
from tests.node.role_nodes import put as put_to
from trioha.broker_status import BrokerStatus
from trioha.ha.bodies import BodyPart
from trioha.ha.frames import TransferDecoder, encode_report
from trioha.ha.slave import HaSlave
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.fastjson import parse_json


async def published(client: RemotingClient) -> dict[str, int]:
    """The offsets that a slave copies, by level."""
    answer = await client.request(request(RequestCode.GET_ALL_DELAY_OFFSET), timeout_s=WITHIN_S)
    table = parse_json(bytes(answer.body).decode())["offsetTable"]
    return {str(level): offset for level, offset in table.items()}


async def test_a_slave_gets_the_offset_of_a_delivery_only_when_it_has_the_record(tmp_path):
    """Else it would pass over the message, which was sent long ago, if it were promoted."""
    async with role_node(tmp_path / "m", SYNC_MASTER, slaveTimeout=100) as master:
        ha, before = master.ready.ha, (await master.status()).max_offset
        async with (
            await trio.open_tcp_stream(ha.host, ha.port) as slave,
            open_client(master.address) as client,
        ):
            await slave.send_all(encode_report(before or 0))
            await master.until(lambda status: bool(status.connections))
            await put_to(client, b"delayed", delay_level=1)
            waiting = await master.until(lambda status: status.dispatched_offset == status.max_offset)
            delivered = await master.until(lambda status: status.max_offset > waiting.max_offset)
            await master.until(lambda status: status.flushed_offset == delivered.max_offset)
            assert (await published(client)).get("1", 0) == 0
            decoder = TransferDecoder(body_bytes_max=1 << 20, joined_within_bytes=1 << 20)
            received = 0
            with trio.fail_after(WITHIN_S):
                while received < delivered.max_offset:
                    decoder.feed(bytearray(await slave.receive_some(65536)))
                    while (event := decoder.next_event()) is not None:
                        received += len(event.data) if isinstance(event, BodyPart) else 0
                await slave.send_all(encode_report(delivered.max_offset))
                while (await published(client)).get("1", 0) != 1:  # noqa: ASYNC110
                    await trio.sleep(0.02)


async def test_a_slave_copies_offsets_of_deliveries_when_it_has_caught_up(tmp_path, monkeypatch):
    has_caught_up = False
    monkeypatch.setattr(HaSlave, "has_caught_up", lambda _: has_caught_up)
    async with (
        role_node(tmp_path / "m", SYNC_MASTER, slaveTimeout=100) as master,
        open_client(master.address) as client,
    ):
        await put_to(client, b"delayed", delay_level=1)
        with trio.fail_after(WITHIN_S):
            while (await published(client)).get("1", 0) != 1:  # noqa: ASYNC110
                await trio.sleep(0.02)
        copies = {"trioha.masterAddress": master.address, "trioha.metadataSyncFirst": 10}
        async with (
            role_node(tmp_path / "s", slave_of(master), **copies) as slave,
            open_client(slave.address) as at_slave,
        ):
            await slave.follows((await master.status()).max_offset or 0)

            def has_copied_all_else(status: BrokerStatus) -> bool:
                tables = {} if status.metadata is None else status.metadata.tables
                return tables.get("consumerOffsets") is not None and all(
                    (copy.age_ms is None) == (name == "delayOffsets") for name, copy in tables.items()
                )

            await slave.until(has_copied_all_else)
            assert await published(at_slave) == {}
            has_caught_up = True
            with trio.fail_after(WITHIN_S):
                while (await published(at_slave)).get("1", 0) != 1:  # noqa: ASYNC110
                    await trio.sleep(0.02)
