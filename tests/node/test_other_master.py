"""A slave that was given the address of another broker, or other log files, copies nothing and says so."""

import json

import pytest

from tests.node_process import FILE_BYTES, run_trioha
from tests.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"brokerName": "mistyped"}, "the brokerName of {} is 'interop', that of this slave is 'mistyped'"),
        pytest.param(
            {"mappedFileSizeCommitLog": 2 * FILE_BYTES},
            (
                f"the mappedFileSizeCommitLog of {{}} is '{FILE_BYTES}', "
                f"that of this slave is '{2 * FILE_BYTES}'"
            ),
            marks=pytest.mark.full,
        ),
    ],
    ids=["name", "file size"],
)
def test_a_slave_refuses_another_master_by_name(start_node, settings, reason):
    master = start_node("master", role="ASYNC_MASTER")
    assert master.load(10).statuses == {"PUT_OK": 10}
    slave = start_node(
        "slave", slave_of=master, **{"trioha.masterAddress": master.listen_address, **settings}
    )
    expected = f"OTHER_MASTER: {reason.format(master.listen_address)}"
    wait_until(lambda: slave.status().client.verdict == expected, f"{expected}\n{slave.log()}")
    assert slave.max_offset == 0
    said = json.loads(run_trioha("doctor", "--json", master.listen_address, slave.listen_address).stdout)
    found = [finding["id"] for finding in said["findings"] if finding["severity"] == "critical"]
    assert "slave-not-admitted" in found
    assert "slave-not-connected" not in found
