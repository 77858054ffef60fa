"""`trioha doctor`: input, output, exit codes; real brokers by their recorded answers."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from tests.cli.test_status import brokers
from tests.remoting.recorded import answers
from trioha.cli import main
from trioha.doctor.findings import CHECKS
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand

REAL_4 = "remoting-4.9.7/098-probe--master"
REAL_5 = "remoting-5.3.3/070-probe--master"
CONFIGS = Path(__file__).parents[2] / "configs"
HEALTHY_MASTER = "brokerName=a\nbrokerRole=SYNC_MASTER\ninSyncReplicas=2\nnamesrvAddr=10.0.0.5:9876\n"
HEALTHY_SLAVE = "brokerName=a\nbrokerRole=SLAVE\nbrokerId=1\nnamesrvAddr=10.0.0.5:9876\n"


@pytest.fixture
def healthy_files(tmp_path):
    master, slave = tmp_path / "master.conf", tmp_path / "slave.conf"
    master.write_text(HEALTHY_MASTER)
    slave.write_text(HEALTHY_SLAVE)
    return str(master), str(slave)


def with_config(recorded: Mapping[int, RemotingCommand], **config: str) -> dict[int, RemotingCommand]:
    """Recorded answers with other values in GET_BROKER_CONFIG."""
    answer = recorded[RequestCode.GET_BROKER_CONFIG]
    body = bytes(answer.body) + "".join(f"{key}={value}\n" for key, value in config.items()).encode()
    return {**recorded, RequestCode.GET_BROKER_CONFIG: evolve(answer, body=body)}


def found_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    whole: dict[str, Any] = json.loads(out)
    return code, whole


def test_the_files_of_a_healthy_pair_are_one_line(healthy_files, capsys):
    assert main(["doctor", *healthy_files]) == 0
    assert capsys.readouterr() == (f"2 files, 1 pair: no findings ({len(CHECKS)} checks)\n", "")


@pytest.mark.parametrize("pair", ["sync", "async"])
def test_our_own_example_files_have_no_findings(pair, capsys):
    files = [str(CONFIGS / f"{pair}-{role}.conf") for role in ("master", "slave")]
    assert main(["doctor", *files]) == 0, capsys.readouterr().out


def test_a_finding_has_its_severity_evidence_and_remedy(tmp_path, capsys):
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=a\nbrokerRole=SYNC_MASTER\n")
    assert main(["doctor", str(path), "--rocketmq-version", "5.5.0"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1 file: 1 critical",
        "",
        f"CRITICAL  sync-master-waits-for-nobody  {path}",
        "  A SYNC_MASTER of RocketMQ 5 confirms messages that no slave has.",
        "  found: brokerRole is SYNC_MASTER and inSyncReplicas is not set: 1 by default",
        "  do:    inSyncReplicas=2 in its broker.conf, then restart it",
    ]


def test_text_of_a_file_cannot_write_to_the_terminal(tmp_path, capsys):
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerName=a\nbrokerRol=\x1b[2J[red]x\\n2\n")
    assert main(["doctor", str(path)]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"brokerRol=\x1b[2J[red]x\n2" in out


def test_a_recorded_master_of_5_3_is_examined(capsys):
    with brokers(answers(REAL_5)) as (address,):
        code, whole = found_json(capsys, address)
    assert code == 1
    assert whole["healthy"] is False
    assert whole["nodes"] == [
        {
            "node": address,
            "cluster": "SpecCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "role": "SYNC_MASTER",
            "version": "V5_3_3",
            "file": None,
            "answers": True,
        }
    ]
    found = {one["id"]: one for one in whole["findings"]}
    # It ran at another port, where it is not any more.
    assert set(found) == {"sync-master-waits-for-nobody", "advertised-address-unreachable"}
    assert found["sync-master-waits-for-nobody"] == {
        "id": "sync-master-waits-for-nobody",
        "severity": "critical",
        "title": "A SYNC_MASTER of RocketMQ 5 confirms messages that no slave has",
        "subject": address,
        "evidence": "brokerRole is SYNC_MASTER and inSyncReplicas is 1",
        "remedy": "inSyncReplicas=2 in its broker.conf, then restart it",
    }


def test_a_recorded_master_of_4_9_waits_for_its_slave(capsys):
    with brokers(answers(REAL_4)) as (address,):
        _, whole = found_json(capsys, address)
    assert {one["id"] for one in whole["findings"]} == {"advertised-address-unreachable"}


def test_mild_findings_can_be_left_out(capsys):
    recorded = with_config(answers(REAL_5), inSyncReplicas="2", haFlowControlEnable="true", brokerIP1="")
    with brokers(recorded) as (address,):
        assert {one["id"] for one in found_json(capsys, address)[1]["findings"]} == {"flow-control-spins"}
        assert found_json(capsys, address, "--severity", "critical")[0] == 0


def test_a_file_and_its_running_broker_are_one_node(tmp_path, capsys):
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerClusterName=SpecCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerRole=SYNC_MASTER\n"
        "inSyncReplicas=2\nhaSlaveFallbehindMax=1000\n"
    )
    with brokers(answers(REAL_5)) as (address,):
        _, whole = found_json(capsys, address, str(path))
    assert [node["file"] for node in whole["nodes"]] == [str(path)]
    found = {one["id"]: one["evidence"] for one in whole["findings"]}
    assert found["setting-ignored"].startswith(
        "line 6: haSlaveFallbehindMax=1000 is not used by RocketMQ 5.3.3"
    )
    assert found["setting-not-in-effect"] == f"{path}:5: inSyncReplicas is 2, in effect is 1"


def test_a_dead_address_is_a_finding_and_the_others_are_examined(capsys, dead_address):
    with brokers(answers(REAL_4)) as (address,):
        names = [dead_address, "127.0.0.1:1"]
        code, whole = found_json(capsys, dead_address, address, "--namesrv", ";".join(names))
    assert code == 1
    assert [node["answers"] for node in whole["nodes"]] == [False, True]
    assert whole["nameServers"] == names
    assert "broker-unreachable" in {one["id"] for one in whole["findings"]}


def test_input_that_cannot_be_used_is_one_line_and_exit_code_2(refusal):
    for arguments, says in (
        (["somewhere"], "'somewhere' is not an address: it has no port"),
        (["/nowhere/broker.conf"], "/nowhere/broker.conf: cannot be read"),
        (["broker-that-is-not-there.conf"], "cannot be read"),
        (["127.0.0.1:1", "--namesrv", "x"], "'x' is not an address"),
        (["127.0.0.1:1", "--timeout", "0"], "--timeout"),
        (["127.0.0.1:1", "--rocketmq-version", "new"], "--rocketmq-version"),
        (["127.0.0.1:1", "--severity", "bad"], "bad"),
        (["127.0.0.1:1", "--interval", "0"], "interval"),
        (["127.0.0.1:1", "--credentials", "/nowhere.yml"], "/nowhere.yml"),
        (["127.0.0.1:1", "--source", "nowhere"], "--source"),
        (["127.0.0.1:1", "--source", "192.0.2.7"], "--source"),
    ):
        assert says in refusal("doctor", *arguments)


@pytest.mark.full
@pytest.mark.process
def test_a_watch_in_a_terminal_shows_what_begins_and_ends(healthy_files):
    master = Path(healthy_files[0])
    ours, theirs = pty.openpty()
    watch = subprocess.Popen(
        [sys.executable, "-m", "trioha", "doctor", "--watch", "--interval", "1", *healthy_files],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50"},
    )
    os.close(theirs)
    seen = ""

    def wait_for(text: str) -> None:
        nonlocal seen
        deadline = time.monotonic() + 30
        while text not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536).decode()
        seen = seen[seen.index(text) + len(text) :]

    try:
        wait_for("no findings")
        master.write_text(HEALTHY_MASTER.replace("inSyncReplicas=2", "inSyncReplicas=1"))
        wait_for("sync-master-waits-for-nobody")
        wait_for("since ")
        master.write_text(HEALTHY_MASTER)
        wait_for("ended ")
        wait_for("sync-master-waits-for-nobody")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(60) == 0
    finally:
        if watch.poll() is None:
            watch.kill()
            watch.wait(60)
        os.close(ours)
