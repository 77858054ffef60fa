"""A hundred thousand hostile frames against live nodes, the client, the monitor's feed and a slave."""

import pytest
import trio

from tests.hostile.bench import Bench
from tests.hostile.frame import Lane
from tests.hostile.requests import SERVED
from tests.hostile.run import run_seed
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = pytest.mark.process

SEED = 11
FRAMES = 100_000


@pytest.mark.timeout(900)
def test_honest_peers_go_on_undisturbed_whatever_strangers_send(tmp_path):
    result = run_seed(SEED, FRAMES, tmp_path)
    assert result.findings == []
    # All of them were sent, and the honest producer was there.
    assert result.counters.done == FRAMES
    assert result.honest["PUT_OK"] > 100
    assert result.counters.codes["SUCCESS"] > FRAMES / 20
    assert set(result.health) == {"master", "slave", "misled"}


def test_every_request_that_a_node_serves_has_its_row(tmp_path):
    """What is not in the table of requests is not supported, by a master and by a slave."""

    async def served(address):
        codes = set()
        async with open_client(address) as client:
            for code in {*range(1000), *map(int, RequestCode)}:
                response = await client.request(request(code), timeout_s=30.0)
                if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    codes.add(code)
        return codes

    with Bench(tmp_path) as bench:
        for lane in (Lane.MASTER, Lane.SLAVE):
            assert trio.run(served, bench.address(lane)) == SERVED
