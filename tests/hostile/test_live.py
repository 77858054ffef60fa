"""Hostile frames against live nodes in both roles: those that did harm once, and those of a seed."""

import pytest
import trio

from tests.hostile.generator import frame_of
from tests.hostile.pinned import pinned_frames
from tests.hostile.requests import SERVED
from tests.hostile.run import run_frames
from tests.levels import by_level
from tests.users import PROVIDERS
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = pytest.mark.process

SEED = 11
FRAMES = by_level(500, 4_000, 8_000)


@pytest.mark.sized
@pytest.mark.timeout(by_level(120, 400, 400))
def test_honest_peers_go_on_undisturbed_whatever_strangers_send(tmp_path):
    frames = [*pinned_frames(), *(frame_of(SEED, index) for index in range(FRAMES))]
    result = run_frames(SEED, frames, tmp_path, warm_up=FRAMES // 5)
    assert result.findings == []
    # All of them were sent, and the honest producer was there.
    assert result.counters.done == len(frames)
    assert result.counters.codes["SUCCESS"] > FRAMES / 20
    assert result.honest["PUT_OK"] > 20
    assert set(result.health) == {"master", "slave", "misled"}


@pytest.mark.full
def test_every_request_that_a_node_serves_has_its_row(start_node):
    """What is not in the table of requests is not supported, by a master and by a slave."""

    async def served(address):
        codes = set()
        async with open_client(address) as client:
            for code in {*range(1000), *map(int, RequestCode)}:
                response = await client.request(request(code), timeout_s=30.0)
                if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    codes.add(code)
        return codes

    master = start_node("master", role="SYNC_MASTER", **PROVIDERS)
    slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address, **PROVIDERS)
    for node in (master, slave):
        assert trio.run(served, node.listen_address) == SERVED
