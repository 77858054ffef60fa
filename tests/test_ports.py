from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ports
from tests.ports import free_port


def test_each_port_is_given_once_with_the_ports_of_a_broker_beside_it() -> None:
    given = [free_port() for _ in range(20)]
    beside = {port + step for port in given for step in (-2, -1, 0, 1)}
    assert len(beside) == 80


def test_no_port_is_one_that_an_outgoing_connection_gets() -> None:
    system = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not system.exists():
        pytest.skip("the range is read on Linux")
    first, last = map(int, system.read_text().split())
    if first < ports._LOWEST + 1000:
        pytest.skip("the range of this machine leaves no ports below it")
    assert not any(first <= free_port() + 1 <= last for _ in range(20))


def test_a_port_is_kept_from_other_processes_until_its_own_ends() -> None:
    one, other = free_port(), free_port()
    # What is kept is free, as it is while a server that has it starts, or is started again.
    asked = (
        "from tests import ports\n"
        f"ports._left = iter([{one - 2}, {other - 2}, *ports._left])\n"
        "print(ports.free_port(), flush=True)\n"
        "input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", asked], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        theirs = int(process.stdout.readline())
        assert theirs not in {one, other}
        assert not ports._keep(theirs - 2)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == 0
    assert ports._keep(theirs - 2)
