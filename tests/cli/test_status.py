"""`trioha status`: tables for people, JSON for machines."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import trio
from attrs import evolve

from tests.controller.set_data import set_data_body
from tests.remoting.recorded import answers
from tests.status_samples import HA_ADDRESS, connection_status, master_status, slave_status
from trioha.broker_status import (
    ArchiveStatus,
    BrokerSettings,
    BrokerStatus,
    ControllerLinkStatus,
    ControlStatus,
    MemberStatus,
    MetadataStatus,
    SlaveStatus,
    TableCopyStatus,
)
from trioha.cli import console, main, status_rows
from trioha.cli.status_rows import Earlier, second_look_s
from trioha.controller import bodies, protocol
from trioha.controller.header import Header
from trioha.distribution import Distribution
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request, response_to
from trioha.remoting.ha_runtime_info import encode_ha_status
from trioha.remoting.server import Peer, RemotingServer
from trioha.replica_verdict import Verdict

MASTER = master_status(
    123_456,
    connection_status(
        "10.0.0.2:4000", sent=123_456, ack=123_000, transferred_bytes_per_s=1_000, lag_ms=12,
        connection_id=1, frame_bytes=Distribution(1, 2, 3, 4),
    ),
    connection_status(
        "10.0.0.3:4000", sent=99_999, ack=0, lag=123_456, in_sync=False, state="SUSPEND", connection_id=2
    ),
    settings=BrokerSettings(slave_timeout_ms=20),
    version="1.0",
    flushed_offset=120_000,
    put_statuses={"PUT_OK": 5_000},
    kernel="pure, TRIOHA_PURE is set",
    dispatched_offset=119_000,
    dispatch_fault="body CRC 1 is not 2 at offset 119000",
)  # fmt: skip
SLAVE = slave_status(
    123_000,
    reported=122_900,
    client={"transferred_bytes_per_s": 1_000, "reconnects": 3, "verdict": ""},
    version="1.0",
    flushed_offset=122_000,
)


Answers = dict[int, RemotingCommand]


def node(status: BrokerStatus) -> dict[int, RemotingCommand]:
    code = RequestCode.GET_BROKER_HA_STATUS
    return {code: response_to(request(code), 0, body=encode_ha_status(status))}


@contextmanager
def brokers(*recorded: Mapping[int, RemotingCommand]) -> Iterator[list[str]]:
    """Addresses of brokers in a thread, with recorded answers."""
    ready = threading.Event()
    addresses: list[str] = []
    tokens: list[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def one(recorded: Mapping[int, RemotingCommand], task_status: trio.TaskStatus[object]) -> None:
        def handler(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
            return evolve(recorded[asked.code], opaque=asked.opaque)

        await RemotingServer(handler).serve(host="127.0.0.1", port=0, task_status=task_status)  # type: ignore[arg-type]

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for each in recorded:
                ((host, port),) = await nursery.start(one, each)
                addresses.append(f"{host}:{port}")
            tokens.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert ready.wait(60)
    try:
        yield addresses
    finally:
        token, scope = tokens[0]
        token.run_sync_soon(scope.cancel)
        thread.join(60)
        assert not thread.is_alive()


def rows_of(text: str) -> list[str]:
    """The rows of tables, with one blank between cells."""
    return [
        " ".join(cell.strip() for cell in line.strip("│").split("│"))
        for line in text.splitlines()
        if line.startswith("│")
    ]


def test_all_figures_of_nodes_their_slaves_and_their_masters_are_tables(capsys):
    with brokers(node(MASTER), node(SLAVE)) as (master, slave):
        assert main(["status", master, slave, "--wide", "--reachable"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert rows_of(out) == [
        f"{master} SYNC_MASTER DefaultCluster/broker-a (0) 1.0 {HA_ADDRESS} 0 123,456 120,000 119,000 1",
        f"{slave} SLAVE DefaultCluster/broker-a (1) 1.0 - 0 123,000 122,000 - -",
        f"{master} 10.0.0.2:4000 TRANSFER yes 123,456 123,000 456 12 1,000",
        f"{master} 10.0.0.3:4000 SUSPEND NO 99,999 0 123,456 - 0",
        f"{slave} {HA_ADDRESS} TRANSFER 123,000 122,900 3 1,000",
    ]
    assert f"{master} puts: PUT_OK 5,000" in out
    assert f"{master}: a record cannot be dispatched: body CRC 1 is not 2 at offset 119000" in out


def narrow(monkeypatch):
    """Output as on a terminal of 80 columns."""
    monkeypatch.setattr(console, "PIPE_COLUMNS", 80)


def test_each_broker_and_replica_is_one_line_of_80_columns(capsys, monkeypatch):
    narrow(monkeypatch)
    client = evolve(SLAVE.client, local_address="10.0.0.2:4000", is_observer=False)
    refused = evolve(client, local_address=None, verdict="OTHER_MASTER: the broker there is broker-b of c")
    full = evolve(MASTER, put_refusal="the disk of /var/lib/rocketmq is full", dispatch_fault="")
    slaves = [evolve(SLAVE, client=client), evolve(SLAVE, client=refused, broker_id=2)]
    with brokers(node(full), *map(node, slaves)) as (master, slave, other):
        assert main(["status", master, slave, other]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"CRITICAL: DISK FULL: {master}; 1 replica STALLED; 1 replica REFUSED"
    assert max(map(len, lines[1:6])) <= 80
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["broker", "state"],
        [master, "DISK"],
        [slave, "OK"],
        ["10.0.0.3:4000", "STALLED"],
        [other, "REFUSED"],
    ]
    assert "456 B, 12 ms" in lines[3]
    assert "121 KiB" in lines[4]
    # What was cut follows in full.
    assert lines[6].startswith(f"{master}: disk-full: the disk of /var/lib/rocketmq is full; 0 puts")
    assert lines[5].endswith("the broker there is broker-b of c")


def test_a_sound_pair_is_two_lines_below_the_first_and_exit_code_0(capsys):
    client = evolve(SLAVE.client, local_address="10.0.0.2:4000", is_observer=False)
    sound = evolve(MASTER, connections=MASTER.connections[:1], dispatch_fault="")
    with brokers(node(sound), node(evolve(SLAVE, client=client))) as (master, slave):
        assert main(["status", master, slave]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["OK:", "2", "brokers,", "1", "replica"],
        ["broker", "state", "lag"],
        [master, "OK", "end", "123,456,", "SYNC_MASTER", "broker-a", "(0)"],
        [slave, "OK", "456", "B,", "12", "ms", "end", "123,000,", "SLAVE", "broker-a", "(1)"],
    ]


def test_what_is_wrong_with_a_master_itself_is_in_the_first_line(capsys):
    alone = evolve(MASTER, connections=(), in_sync_slaves=0, dispatch_fault="")
    with brokers(node(alone)) as (master,):
        assert main(["status", master]) == 1
    assert capsys.readouterr().out.splitlines()[0] == f"CRITICAL: {master}: too-few-slaves-in-sync"


def test_a_broken_replica_is_exit_code_1_unless_only_reachability_counts(capsys):
    diverged = evolve(SLAVE.client, verdict="DIVERGED: other bytes at 5", is_observer=False)
    with brokers(node(evolve(SLAVE, client=diverged))) as (slave,):
        assert main(["status", slave]) == 1
        assert main(["status", slave, "--reachable"]) == 0
        capsys.readouterr()
        assert main(["status", slave, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["state"] == {"severity": "CRITICAL", "text": "CRITICAL: 1 replica DIVERGED"}
    assert shown["verdicts"] == [
        {
            "address": slave,
            "master": None,
            "state": "DIVERGED",
            "severity": "CRITICAL",
            "verdict": "DIVERGED",
            "lagBytes": None,
            "lagMs": None,
            "problems": ["other bytes at 5"],
        }
    ]


def connected(ack: int, *, lag_ms: int | None = 5000) -> BrokerStatus:
    """A master whose slave has acknowledged up to `ack` of 1000."""
    connection = connection_status("10.0.0.2:4000", sent=1000, ack=ack, lag_ms=lag_ms)
    return evolve(master_status(1000, connection), address="m:1", flushed_offset=1000)


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (connected(400), connected(400), Verdict.STALLED),
        (connected(400), connected(500), Verdict.FALL_BEHIND),
        (connected(400), connected(1000, lag_ms=0), Verdict.OK),
        # RocketMQ reports no age: bytes that were there at the first look are as old as that.
        (connected(400, lag_ms=None), connected(400, lag_ms=None), Verdict.STALLED),
        (connected(400, lag_ms=None), connected(1000, lag_ms=None), Verdict.OK),
    ],
)
def test_a_second_look_tells_a_stalled_replica_from_one_that_moves(before, now, verdict):
    assert second_look_s([before]) == 3.0
    rows = status_rows.rows_of([now], earlier=Earlier([before], ago_s=3.5))
    assert [row.verdict for row in rows] == [None, verdict]


def test_brokers_whose_replicas_do_not_wait_are_asked_once():
    assert second_look_s([connected(400, lag_ms=2999), connected(1000, lag_ms=0)]) is None


def test_an_unconnected_slave_of_a_master_is_silent_with_what_it_lacks():
    client = evolve(SLAVE.client, is_observer=False, local_address=None)
    slave = evolve(SLAVE, address="s:1", client=client)
    rows = status_rows.rows_of([evolve(master_status(200_000), address="m:1"), slave])
    assert [(row.address, row.master, row.state, row.lag_bytes) for row in rows[1:]] == [
        ("s:1", "m:1", "SILENT", 77_000)
    ]


@pytest.mark.parametrize(
    ("session", "row"),
    [
        (
            "remoting-5.3.3/070-probe--master",
            "SYNC_MASTER SpecCluster/broker-a (0) V5_3_3 127.0.0.1:43312 0 15,630 - 14,001 1",
        ),
        (
            "remoting-4.9.7/098-probe--master",
            "SYNC_MASTER SpecCluster/broker-a (0) V4_9_7 127.0.0.1:43112 0 11,179 - 11,179 -",
        ),
    ],
)
def test_real_brokers_are_shown(session, row, capsys, monkeypatch):
    monkeypatch.setattr("trioha.cli.status.second_look_s", lambda brokers: None)
    with brokers(answers(session)) as (address,):
        assert main(["status", address, "--wide", "--reachable"]) == 0
    assert rows_of(capsys.readouterr().out)[0] == f"{address} {row}"


def test_the_metadata_of_slaves_is_a_table_with_a_line_for_each_problem(capsys):
    copied = MetadataStatus(
        master_address="10.0.0.1:10911",
        tables={
            "topics": TableCopyStatus(age_ms=1_250, entries=4_000, changes=3),
            "groups": TableCopyStatus(failures=2, error="Connection refused"),
        },
        policy="keep",
        regressions=1_200,
        regressions_accepted=1,
        regressions_kept=7,
    )
    with brokers(node(MASTER), node(evolve(SLAVE, metadata=copied))) as (master, slave):
        assert main(["status", master, slave, "--wide", "--reachable"]) == 0
    out = capsys.readouterr().out
    assert rows_of(out)[-2:] == [
        f"{slave} 10.0.0.1:10911 groups - - 0 2",
        f"{slave} 10.0.0.1:10911 topics 1.2 4,000 3 0",
    ]
    assert [line for line in out.splitlines() if line.startswith(f"{slave}:")] == [
        f"{slave}: groups cannot be copied: Connection refused",
        (
            f"{slave}: 1,200 offsets of the master were before the slave's, 1 were taken, 7 are kept out "
            "(trioha.offsetRegression=keep)"
        ),
    ]


def test_archives_are_a_table_with_a_line_for_each_problem(capsys):
    archive = ArchiveStatus(
        url="s3://backups/a",
        state="running",
        generation="0001-5f0c9a12",
        archived_offset=123_000,
        lag_bytes=456,
        lag_ms=1_250,
        objects=7,
        object_bytes=9_000,
    )
    failing = ArchiveStatus(
        url="file:///b", state="waiting", error="503 [Slow Down]", files_deleted_unarchived=2
    )
    with brokers(node(evolve(MASTER, archive=archive)), node(evolve(SLAVE, archive=failing))) as (
        master,
        slave,
    ):
        assert main(["status", master, slave, "--wide", "--reachable"]) == 0
    out = capsys.readouterr().out
    assert rows_of(out)[-2:] == [
        f"{master} s3://backups/a 0001-5f0c9a12 running 123,000 456 1.2 7 9,000",
        f"{slave} file:///b - waiting - - - 0 0",
    ]
    assert [line for line in out.splitlines() if line.startswith(f"{slave}:")] == [
        f"{slave}: archive waiting: 503 [Slow Down]",
        f"{slave}: 2 log files were deleted before they were archived",
    ]


CONTROLLER = "10.0.0.9:9878"
MASTERS_CONTROL = ControlStatus(
    role="master",
    step="following",
    broker_id=2,
    master_epoch=5,
    master_id=2,
    master_address="10.0.0.2:10911",
    log_epoch=5,
    sync_state_set=(1, 2),
    sync_state_set_epoch=9,
    in_sync_min=3,
    members=(
        MemberStatus(broker_id=1, in_set=True, is_required=True, is_connected=True, ack_offset=123_000),
        MemberStatus(broker_id=2, in_set=True, is_required=True, is_connected=True, ack_offset=123_456),
        MemberStatus(broker_id=3, is_required=True, is_connected=True),
        MemberStatus(broker_id=4, is_connected=False),
    ),
    confirm_offset=123_000,
    leader=CONTROLLER,
    leader_heard_ms=2_500,
    controllers=(ControllerLinkStatus(address=CONTROLLER, is_connected=True, is_leader=True),),
    role_changes=3,
)


def test_controller_mode_is_two_tables_and_a_line_for_each_problem(capsys):
    alone = ControlStatus(
        role="none",
        step="registering",
        controllers=(
            ControllerLinkStatus(address=CONTROLLER, reason="cannot connect: [refused]"),
            ControllerLinkStatus(address="10.0.0.8:9878", is_connected=True, reason="none leads"),
        ),
        refusal="CONTROLLER_FENCED_MASTER_EPOCH: their state is older",
    )
    sound = evolve(MASTER, control=MASTERS_CONTROL, dispatch_fault="")
    with brokers(node(sound), node(evolve(SLAVE, control=alone))) as (
        master,
        slave,
    ):
        assert main(["status", master, slave, "--wide"]) == 1
    out = capsys.readouterr().out
    rows = rows_of(out)
    known = f"{{1, 2}} epoch 9 123,000 {CONTROLLER} 2.5 3 -"
    assert f"{master} 2 master 5 2 at 10.0.0.2:10911 {known}" in rows
    assert f"{slave} - none - - - - NONE - 0 -" in rows
    assert rows[-7:-3] == [
        f"{master} 1 yes yes 123,000 456",
        f"{master} 2 yes yes 123,456 0",
        f"{master} 3 proposed yes - -",
        f"{master} 4 NO NO - -",
    ]
    assert [line for line in out.splitlines() if line.startswith((f"{master}: ", f"{slave}: "))] == [
        f"{master}: 2 in the sync-state set, minInSyncReplicas is 3: messages are refused",
        f"{slave}: no controller leads: {CONTROLLER}: cannot connect: [refused]; 10.0.0.8:9878: none leads",
        f"{slave}: refused by the controllers: CONTROLLER_FENCED_MASTER_EPOCH: their state is older",
    ]


def rocketmq_answers(controllers: str, *, is_master: bool) -> dict[int, RemotingCommand]:
    """Answers of a RocketMQ broker in controller mode; `controllers` is its controllerAddr."""
    status = BrokerStatus(max_offset=700, in_sync_slaves=1)
    if not is_master:
        status = BrokerStatus(max_offset=600, client=SlaveStatus(max_offset=600))
    config = {
        "brokerClusterName": "c",
        "brokerName": "broker-a",
        "brokerId": 0 if is_master else 2,
        "brokerRole": "SYNC_MASTER" if is_master else "SLAVE",
        "enableControllerMode": "true",
        "controllerAddr": controllers,
        "minInSyncReplicas": 1,
    }
    answers = {
        RequestCode.GET_BROKER_HA_STATUS: encode_ha_status(status),
        RequestCode.GET_BROKER_RUNTIME_INFO: b'{"table":{"commitLogMaxOffset":"700"}}',
        RequestCode.GET_BROKER_CONFIG: "".join(f"{key}={value}\n" for key, value in config.items()).encode(),
        RequestCode.GET_BROKER_EPOCH_CACHE: bodies.EpochCache(
            "c",
            "broker-a",
            0,
            700,
            (bodies.CachedEpoch(3, 0, 500), bodies.CachedEpoch(4, 500, 2**63 - 1)),
        ).to_body(),
    }
    return {code: response_to(request(code), 0, body=body) for code, body in answers.items()}


def controller_answers(*, leads: bool, leader: str = "") -> dict[int, RemotingCommand]:
    """Answers of a controller of one group of two, whose second broker is not in the set."""
    metadata = protocol.ControllerMetadata(is_leader=leads, leader_address=leader or None)
    code, groups = RequestCode.CONTROLLER_GET_METADATA_INFO, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    first = bodies.Replica("broker-a", 1, "10.0.0.1:10911", is_alive=True)
    second = bodies.Replica("broker-a", 2, "10.0.0.2:10911", is_alive=False)
    info = bodies.ReplicaSetInfo((first,), (second,), 1, "10.0.0.1:10911", 4, 7)
    body = set_data_body({"broker-a": info})
    return {
        code: response_to(request(code), 0, ext_fields=metadata.to_fields()),
        groups: response_to(request(groups), 0, body=body),
    }


def test_controller_mode_of_rocketmqs_brokers_comes_from_them_and_their_controllers(capsys, dead_address):
    with (
        brokers(controller_answers(leads=True)) as (leader,),
        brokers(controller_answers(leads=False, leader=leader)) as (follower,),
    ):
        addresses = f"{dead_address};{follower}"
        both = [rocketmq_answers(addresses, is_master=is_master) for is_master in (True, False)]
        with brokers(*both) as (master, slave):
            assert main(["status", master, slave, "--json", "--reachable"]) == 0
    shown = [broker["control"] for broker in json.loads(capsys.readouterr().out)["brokers"]]
    for control in shown:
        assert control.pop("leaderHeardMs") >= 0
    same = {
        "confirmOffset": None,
        "controllers": [
            {
                "address": dead_address,
                "isConnected": False,
                "isLeader": False,
                "reason": "cannot connect: Connection refused",
            },
            {
                "address": follower,
                "isConnected": True,
                "isLeader": False,
                "reason": f"the leader is {leader}",
            },
            {"address": leader, "isConnected": True, "isLeader": True, "reason": ""},
        ],
        "inSyncMin": 1,
        "leader": leader,
        "logEpoch": 4,
        "masterAddress": "10.0.0.1:10911",
        "masterEpoch": 4,
        "masterId": 1,
        "members": [
            {"ackOffset": None, "brokerId": 1, "inSet": True, "isConnected": True, "isRequired": True},
            {"ackOffset": None, "brokerId": 2, "inSet": False, "isConnected": False, "isRequired": False},
        ],
        "refusal": "",
        "roleChangedMs": None,
        "roleChanges": 0,
        "step": "",
        "syncStateSet": [1],
        "syncStateSetEpoch": 7,
    }
    assert shown == [
        {**same, "role": "master", "brokerId": 1},
        {**same, "role": "slave", "brokerId": 2},
    ]


def test_a_broker_in_controller_mode_is_shown_when_no_controller_answers(capsys, dead_address):
    with brokers(rocketmq_answers(dead_address, is_master=True)) as (master,):
        assert main(["status", master, "--wide"]) == 0
    out = capsys.readouterr().out
    row = next(row for row in rows_of(out) if "NONE" in row)
    assert row.startswith(f"{master} - master - - - ")
    line = f"{master}: no controller leads: {dead_address}: cannot connect: Connection refused"
    assert line in out.splitlines()


def test_an_unreachable_broker_is_one_line_and_the_others_are_shown(dead_address, capsys):
    with brokers(node(SLAVE)) as (slave,):
        assert main(["status", dead_address, slave]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[2].startswith(f"{slave}  OK ")
    assert err == f"trioha: {dead_address}: cannot connect: Connection refused\n"


def cluster_of(*addresses: str) -> Answers:
    """The answers of a name server that lists these brokers, of one name, the first one as the master."""
    table = {
        "broker-a": {
            "cluster": "c",
            "brokerAddrs": {str(number): each for number, each in enumerate(addresses)},
        }
    }
    code = RequestCode.GET_BROKER_CLUSTER_INFO
    return {code: response_to(request(code), 0, body=json.dumps({"brokerAddrTable": table}).encode())}


@pytest.mark.parametrize("option", [None, "--namesrv", "--name-server"])
def test_all_brokers_of_a_name_server_are_shown(option, capsys, monkeypatch, dead_address):
    sound = evolve(MASTER, connections=MASTER.connections[:1], dispatch_fault="")
    with brokers(node(sound)) as (master,), brokers(cluster_of(master)) as (name_server,):
        monkeypatch.setenv("NAMESRV_ADDR", dead_address if option else f"{dead_address};{name_server}")
        assert main(["status", *([option, name_server] if option else [])]) == (0 if option else 1)
    assert capsys.readouterr().out.splitlines()[2].split()[:2] == [master, "OK"]


def test_without_any_broker_or_name_server_the_error_says_what_to_write(capsys, monkeypatch, dead_address):
    monkeypatch.setenv("NAMESRV_ADDR", dead_address)
    assert main(["status"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"trioha: {dead_address}: cannot connect: Connection refused",
        "trioha: no broker was named; write trioha status HOST:PORT ..., or --namesrv HOST:PORT",
    ]


def test_an_invalid_answer_is_one_line_with_the_brokers_address(capsys):
    code = RequestCode.GET_BROKER_HA_STATUS
    with brokers({code: response_to(request(code), 0, body=b"{]")}) as (address,):
        assert main(["status", address]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"trioha: {address}: bad JSON at character 1")
    assert err.count("\n") == 1


def test_json_has_every_field_and_every_error(dead_address, capsys):
    with brokers(node(MASTER), node(SLAVE)) as (master, slave):
        assert main(["status", master, slave, dead_address, "--json"]) == 1
    whole = json.loads(capsys.readouterr().out)
    assert whole["errors"] == [f"{dead_address}: cannot connect: Connection refused"]
    shown_master, shown_slave = whole["brokers"]
    assert shown_master["connections"][0] == {
        "address": "10.0.0.2:4000",
        "sentOffset": 123_456,
        "ackOffset": 123_000,
        "lagBytes": 456,
        "inSync": True,
        "transferredBytesPerS": 1_000,
        "state": "TRANSFER",
        "lagMs": 12,
        "connectionId": 1,
        "heardMs": None,
        "ackLatencyUs": None,
        "frameBytes": {"p50": 1, "p99": 2, "largest": 3, "count": 4},
    }
    assert (shown_master["address"], shown_master["role"], shown_master["client"]) == (
        master,
        "SYNC_MASTER",
        None,
    )
    assert (shown_master["putStatuses"], shown_master["flushedOffset"]) == ({"PUT_OK": 5_000}, 120_000)
    assert shown_slave["client"]["reportedOffset"] == 122_900
    assert shown_slave["address"] == slave


def test_bad_input_is_reported_in_one_line(refusal):
    for arguments, says in (
        (["127.0.0.1:1", "--group", "a"], "--controller: is missing; give HOST:PORT of a controller"),
        (["--controller", "c0"], "'c0' is not an address"),
        (["localhost"], "'localhost' is not an address"),
        (["127.0.0.1:1", "--timeout", "0"], "--timeout: 0 is not more than 0"),
    ):
        assert says in refusal("status", *arguments)


def ok(code: RequestCode, *, fields: Header | None = None, body: bytes = b"") -> RemotingCommand:
    return response_to(request(code), 0, ext_fields=fields.to_fields() if fields else {}, body=body)


@contextmanager
def controlled_group(*, has_master: bool = True) -> Iterator[tuple[str, str, str]]:
    """A controller that leads, the master and the slave of its group `broker-x`: their addresses."""

    def epochs(broker_id: int) -> Answers:
        cache = bodies.EpochCache(
            "check", "broker-x", broker_id, 49_380,
            tuple(bodies.CachedEpoch(number, 100 * number, 2**63 - 1) for number in range(1, 7)),
        )  # fmt: skip
        code = RequestCode.GET_BROKER_EPOCH_CACHE
        return {code: ok(code, body=cache.to_body())}

    answers: Answers = {}
    code = RequestCode.GET_BROKER_EPOCH_CACHE
    unsupported: Answers = {code: response_to(request(code), ResponseCode.REQUEST_CODE_NOT_SUPPORTED)}
    with brokers(epochs(0), unsupported, answers) as (master, slave, controller):
        metadata = protocol.ControllerMetadata(
            group="g", leader_address=controller, is_leader=True, peers=f"n0:{controller};n1:127.0.0.1:1;"
        )
        dead = bodies.Replica("broker-x", 3, "127.0.0.1:1", is_alive=False)
        group = bodies.ReplicaSetInfo(
            in_sync=tuple(
                bodies.Replica("broker-x", number, address, is_alive=True)
                for number, address in ((1, master), (2, slave))
            ),
            not_in_sync=(dead,),
            master_id=1 if has_master else None,
            master_address=master if has_master else None,
            master_epoch=6,
            set_epoch=9,
        )
        code = RequestCode.CONTROLLER_GET_METADATA_INFO
        answers[code] = ok(code, fields=metadata)
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        answers[code] = ok(code, body=set_data_body({"broker-x": group}))
        yield controller, master, slave


def test_controllers_and_their_groups_are_shown(capsys):
    with controlled_group() as (controller, master, slave):
        arguments = ["--controller", controller, "--group", "broker-x", "--group", "broker-y", "--wide"]
        assert main(["status", *arguments]) == 0
    out = capsys.readouterr().out
    assert f"Controllers of g: {controller} leads" in out
    assert "Controller 127.0.0.1:1: cannot connect: Connection refused" in out
    assert "broker-x: epoch 6, sync-state set {1, 2} of set epoch 9" in out
    assert rows_of(out) == [
        f"1 {master} master yes yes 49,380 2 older, 3: 300, 4: 400, 5: 500, 6: 600",
        f"2 {slave} slave yes yes - -",
        "3 127.0.0.1:1 slave NO NO - -",
    ]
    refused = "GET_BROKER_EPOCH_CACHE was answered with REQUEST_CODE_NOT_SUPPORTED"
    assert f"{slave}: no epochs: {refused}" in out
    assert "broker-y: not known to the controllers" in out


def test_json_has_controllers_and_their_groups(capsys):
    with controlled_group() as (controller, master, _):
        assert main(["status", "--controller", controller, "--group", "broker-x", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["controllers"]
    assert (shown["leader"], shown["name"]) == (controller, "g")
    group = shown["groups"][0]
    assert (group["masterId"], group["masterEpoch"]) == (1, 6)
    assert (group["syncStateSet"], group["syncStateSetEpoch"]) == ([1, 2], 9)
    assert group["members"][0]["epochs"][0] == {"epoch": 1, "startOffset": 100, "endOffset": 2**63 - 1}
    assert (group["members"][0]["address"], group["members"][0]["isMaster"]) == (master, True)


def test_group_without_a_master_is_a_line_of_its_own(capsys):
    with controlled_group(has_master=False) as (controller, _, _):
        assert main(["status", "--controller", controller, "--group", "broker-x"]) == 1
    assert "broker-x: no master: no living broker of the sync-state set {1, 2}" in capsys.readouterr().out


def test_controller_that_is_not_there_is_one_line(dead_address, capsys):
    assert main(["status", "--controller", dead_address]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == (
        "CRITICAL: 1 of 1 did not answer\n",
        f"trioha: {dead_address}: cannot connect: Connection refused\n",
    )


def test_probes_of_the_ha_port_are_one_line_for_each_of_the_busiest_hosts(capsys):
    probes = {f"10.0.1.{number}": {"EOF": 1000 * number, "NO_REQUEST": 1} for number in range(1, 9)}
    with brokers(node(evolve(MASTER, probes=probes))) as (master,):
        assert main(["status", master, "--wide", "--reachable"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "probes" in line]
        assert main(["status", master, "--json", "--reachable"]) == 0
        assert json.loads(capsys.readouterr().out)["brokers"][0]["probes"] == probes
    assert lines[0] == f"{master} probes of 10.0.1.8 at the HA port: EOF 8,000, NO_REQUEST 1"
    assert lines[5:] == [f"{master} probes of 3 other hosts at the HA port: 6,003"]
