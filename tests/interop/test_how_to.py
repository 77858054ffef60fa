"""How-to pages that start programs of RocketMQ, as they stand: see `tests/cli/test_how_to.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.interop.programs import rocketmq_program
from tests.interop.rocketmq import NEWEST, missing_tools
from tests.page_shell import blocks_of, pair_of_start, shell, trioha_program, with_values
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture
def rocketmq(tmp_path: Path) -> Path:
    """The folder of a distribution with what these pages start."""
    if lacking := missing_tools():
        pytest.skip(lacking)
    home = tmp_path / "rocketmq"
    for name in ("mqcontroller", "mqproxy"):
        rocketmq_program(home, name, NEWEST)
    return home


def test_the_page_has_the_slave_of_a_killed_master_elected(tmp_path: Path, rocketmq: Path) -> None:
    names, controller, nodes, kill, back = blocks_of("how-to/failover.md")
    trioha_program(tmp_path / "bin")
    values = {
        "ROCKETMQ_HOME": rocketmq,
        "FOLDER": tmp_path / "group",
        **{
            name: free_port()
            for name in (
                "CONTROLLER_PORT", "NAMES_PORT", "FIRST_PORT", "FIRST_HA_PORT",
                "SECOND_PORT", "SECOND_HA_PORT",
            )
        },
    }  # fmt: skip
    with shell(tmp_path, tmp_path / "bin") as run:
        run.name(with_values(names.replace("$HOME", "/srv"), values))
        run.run(controller)
        assert "PUT_OK: 1,000" in run.run(nodes)
        assert "PUT_OK: 1,000" in run.run(kill)
        assert "equal from offset 0" in run.run(back)


def test_the_page_puts_the_proxy_before_a_pair(tmp_path: Path, rocketmq: Path) -> None:
    names, proxy, client = blocks_of("how-to/grpc.md")
    values = {"ROCKETMQ_HOME": rocketmq, "GRPC_PORT": free_port(), "PROXY_REMOTING_PORT": free_port()}
    with pair_of_start(tmp_path) as (run, _):
        run.name(with_values(names, values))
        run.run(proxy)
        said = run.run(client)
        assert sorted(re.findall(r"^received (order \d)$", said, re.MULTILINE)) == [
            "order 0", "order 1", "order 2",
        ]  # fmt: skip
