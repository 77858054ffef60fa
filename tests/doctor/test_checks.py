"""Each check: facts with its fault, facts that are close to it, and healthy pairs of every kind."""

from collections.abc import Mapping
from typing import Final

import pytest
from attrs import evolve

from tests.doctor.cases import (
    CLIENT,
    END,
    FILE_BYTES,
    KINDS,
    MASTER,
    NOW_MS,
    SLAVE,
    PairFacts,
    clock,
    conf,
    metadata_copies,
    pair,
    tables,
)
from trioha.auth.stored import tables_of
from trioha.auth.tables import AuthTables
from trioha.broker_status import (
    ArchiveStatus,
    BrokerRuntimeInfo,
    ConnectionStatus,
    ControlStatus,
    PendingStatus,
)
from trioha.controller.bodies import CachedEpoch, EpochCache, Replica, ReplicaSetInfo
from trioha.doctor.case import Case
from trioha.doctor.diagnosis import diagnose
from trioha.doctor.facts import (
    BrokerFacts,
    ConfFacts,
    ControllerFacts,
    EpochFileFacts,
    Facts,
    IdentityFacts,
    ListedBroker,
    NameServerFacts,
    Probe,
    StoreFacts,
    Thresholds,
)
from trioha.doctor.findings import CHECKS, Finding
from trioha.doctor.tables import OffsetTable, Tables
from trioha.doctor.user_digests import digests_of
from trioha.severity import Severity

NAME_SERVER: Final = "10.0.0.5:9876"
LATE_MS: Final = NOW_MS - 1000
HANDOVER: Final = Thresholds(handover=True)


def listed(
    *entries: tuple[int, str], name: str = "broker-a", error: str | None = None
) -> tuple[NameServerFacts, ...]:
    """A name server with entries of one group: ids and addresses."""
    brokers = tuple(
        ListedBroker(cluster_name="c", broker_name=name, broker_id=broker_id, address=address)
        for broker_id, address in entries
    )
    return (NameServerFacts(address=NAME_SERVER, error=error, brokers=brokers),)


def dead(address: str = SLAVE, *, is_named: bool = True, is_refused: bool = False) -> BrokerFacts:
    return BrokerFacts(address=address, is_named=is_named, error="Connection refused", is_refused=is_refused)


def open_port(address: str, *, closed: bool = False, source: str = CLIENT) -> Probe:
    return Probe(
        address=address, local_host=source, peer_host=address.partition(":")[0], closed_at_once=closed
    )


def on_file(text: str, *, version: str | None = None) -> Facts:
    """One file alone."""
    return Facts(files=(conf(text),), assumed_version=version)


def with_file(kind: str, text: str) -> Facts:
    """A pair with the file of its master, which names the master by these keys and `text`."""
    return pair(kind).facts(conf(f"brokerClusterName=c; brokerName=broker-a; brokerId=0; {text}"))


def second_slave(**changes: object) -> Facts:
    """A pair and one more slave, with another id, or with `changes` of its status."""
    both = pair()
    other = evolve(both.slave, address="10.0.0.3:10911", peer_host="10.0.0.3", clock=clock(uptime_s=99))
    assert other.status is not None
    other = evolve(other, status=evolve(other.status, **{"broker_id": 2, **changes}))
    return Facts(brokers=(both.master, both.slave, other))


def second_master(**changes: object) -> Facts:
    """A pair and one more broker made of its master, with `changes` of its status."""
    both = pair()
    other = evolve(both.master, address="10.0.0.3:10911", peer_host="10.0.0.3", clock=clock(uptime_s=99))
    assert other.status is not None
    other = evolve(other, status=evolve(other.status, connections=(), **changes))
    return Facts(brokers=(both.master, both.slave, other))


def ahead(kind: str) -> PairFacts:
    return pair(kind).with_slave_status(max_offset=END + 1)


def offsets(**by_key: dict[int, int]) -> OffsetTable:
    return OffsetTable(offsets={key.replace("__", "@"): queues for key, queues in by_key.items()})


def late(kind: str, *, start: int, end: int, first: int = 0, ratio: float | None = None) -> PairFacts:
    """A master's log from `first` to `end`, its slave's up to `start`."""
    table = BrokerRuntimeInfo(disk_ratio=ratio)
    changed = pair(kind).with_master_status(min_offset=first, max_offset=end, table=table)
    return changed.with_slave_status(max_offset=start)


def archived(**changes: object) -> PairFacts:
    """A pair whose master archives, with these changes of what it reports of that."""
    healthy = ArchiveStatus(
        url="s3://backups/a",
        state="running",
        generation="0001-5f0c9a12",
        archived_offset=END - 100,
        lag_bytes=100,
        lag_ms=9_000,
        objects=3,
        object_bytes=999,
    )
    return pair().with_master_status(archive=evolve(healthy, **changes))


def left_by_rocketmq(**changes: object) -> PairFacts:
    """A pair whose master has counted what a RocketMQ master left."""
    return pair().with_master_status(pending=PendingStatus(**changes))


CONTROLLER: Final = "10.0.0.5:9878"


def epochs(*pairs: tuple[int, int], end: int = END) -> EpochCache:
    """Epochs of a log that ends at `end`: numbers and starts."""
    return EpochCache("c", "broker-a", 0, end, tuple(CachedEpoch(*each, 2**63 - 1) for each in pairs))


def controlled(kind: str = "trioha", **config: str) -> PairFacts:
    """A healthy pair in controller mode, with these settings beside the usual ones on both brokers."""
    both = pair(kind, role="SYNC_MASTER", copies=2)
    mode = {
        "enableControllerMode": "true",
        "controllerAddr": CONTROLLER,
        "allAckInSyncStateSet": "true",
        "minInSyncReplicas": "1",
        **config,
    }
    both = both.with_master_config(**mode).with_slave_config(**{**mode, "brokerId": "2"})
    both = both.with_master(epochs=epochs((1, 0), (2, 700))).with_slave(epochs=epochs((1, 0), (2, 700)))
    master_control = slave_control = None
    if kind == "trioha":
        common = {"master_epoch": 2, "master_id": 1, "sync_state_set": (1, 2), "sync_state_set_epoch": 3}
        master_control = ControlStatus(role="master", broker_id=1, **common)  # type: ignore[arg-type]
        slave_control = ControlStatus(role="slave", broker_id=2, **common)  # type: ignore[arg-type]
    return both.with_master_status(control=master_control).with_slave_status(
        control=slave_control, broker_id=2
    )


def entry(broker_id: int, address: str, *, is_alive: bool = True) -> Replica:
    return Replica("broker-a", broker_id, address, is_alive)


IN_SET: Final = ReplicaSetInfo((entry(1, MASTER), entry(2, SLAVE)), (), 1, MASTER, 2, 3)
"""The pair as its controllers have it."""


def leader(info: ReplicaSetInfo | None = IN_SET, **changes: object) -> ControllerFacts:
    groups = {} if info is None else {"broker-a": info}
    return evolve(ControllerFacts(address=CONTROLLER, is_leader=True, groups=groups), **changes)


def under(
    *controllers: ControllerFacts, both: PairFacts | None = None, files: tuple[ConfFacts, ...] = ()
) -> Facts:
    """A pair in controller mode under these controllers, by default a healthy one."""
    return (both or controlled()).facts(*files, controllers=controllers or (leader(),))


def controlled_file(text: str, **facts: object) -> ConfFacts:
    """A file of controller mode that has these lines beside the usual ones, and the facts of its store."""
    usual = (
        f"brokerClusterName=c; brokerName=broker-a; enableControllerMode=true; controllerAddr={CONTROLLER}"
    )
    return evolve(conf(f"{usual}; namesrvAddr=10.0.0.5:9876; {text}"), **facts)


CHECKED: Final = {"authenticationEnabled": "true", "trioha.haAllowedPeers": "10.0.0.0/8"}
USERS: Final = tables_of({"alice": {"password": "p"}, "bob": {"password": "q"}}, {})
OTHERS: Final = tables_of({"alice": {"password": "other"}, "bob": {"password": "q"}}, {})


def with_users(both: PairFacts, master: AuthTables | None, slave: AuthTables | None) -> PairFacts:
    """A pair whose nodes have these users."""
    sides = [evolve(tables(), users=each and digests_of(each)) for each in (master, slave)]
    return both.with_master(tables=sides[0]).with_slave(tables=sides[1])


FAULTS: Final[Mapping[str, list[tuple[Facts | PairFacts, str]]]] = {
    "access-control-differs": [
        (
            pair().with_master_config(**CHECKED),
            "authenticationEnabled=true, and of 10.0.0.2:10911 it is false",
        ),
        (pair().with_slave_config(aclEnable="true"), "aclEnable=true, and of 10.0.0.1:10911 it is false"),
    ],
    "users-differ": [
        (with_users(pair(), USERS, OTHERS), "not the same at both: alice"),
        (with_users(pair("5.5.0"), USERS, AuthTables()), "not the same at both: alice, bob"),
    ],
    "ha-port-open": [
        (pair().with_master_config(authenticationEnabled="true"), "neither trioha.haAllowedPeers nor"),
        (pair().with_slave_config(aclEnable="true"), "requests of clients are checked"),
    ],
    "broker-unreachable": [
        (Facts(brokers=(pair().master, dead())), "Connection refused"),
        (
            Facts(
                brokers=(pair().master, dead(is_named=False)), name_servers=listed((0, MASTER), (1, SLAVE))
            ),
            "a name server lists it",
        ),
    ],
    "broker-refuses": [
        (Facts(brokers=(dead(is_refused=True),)), "Connection refused"),
        (pair().with_master(config=None, gaps=("GET_BROKER_CONFIG: NO_PERMISSION",)), "NO_PERMISSION"),
    ],
    "name-server-unreachable": [
        (pair().facts(name_servers=listed(error="no answer in 3 s")), "no answer in 3 s")
    ],
    "not-registered": [
        (pair().facts(name_servers=listed((0, MASTER))), f"{NAME_SERVER} does not list id 1"),
        (pair().facts(name_servers=listed((0, MASTER), (1, SLAVE), name="other")), "does not list id 0"),
    ],
    "registered-with-other-address": [
        (
            Facts(
                brokers=(pair().master, pair().slave, dead("172.17.0.1:10911", is_named=False)),
                name_servers=listed((0, MASTER), (1, "172.17.0.1:10911")),
            ),
            "lists id 1 of c/broker-a at 172.17.0.1:10911",
        )
    ],
    "no-master": [
        (Facts(brokers=(pair().slave,), name_servers=listed((1, SLAVE))), "there is no broker with id 0"),
        (
            Facts(brokers=(pair().slave, evolve(second_slave().brokers[2], address="10.0.0.3:10911"))),
            "slaves: 10.0.0.2:10911, 10.0.0.3:10911",
        ),
    ],
    "two-masters": [(second_master(), "10.0.0.1:10911 and 10.0.0.3:10911")],
    "duplicate-broker-id": [(second_slave(broker_id=1), "brokerId 1: ")],
    "name-mismatch": [
        (pair().with_slave_status(broker_name="broker-b"), "brokerName is broker-b"),
        (pair("5.5.0").with_slave_status(cluster_name="d"), "brokerClusterName is d"),
        (
            Facts(
                files=(
                    conf("brokerName=a; brokerRole=SYNC_MASTER; inSyncReplicas=2", path="m.conf"),
                    conf("brokerName=b; brokerRole=SLAVE; brokerId=1; namesrvAddr=h:1", path="s.conf"),
                )
            ),
            "brokerName is b, that of its master m.conf is a",
        ),
    ],
    "role-and-id": [
        (on_file("brokerRole=SLAVE; brokerName=a"), "brokerId is 0"),
        (on_file("brokerId=1; brokerName=a"), "brokerRole is ASYNC_MASTER, the default"),
    ],
    "advertised-address-unreachable": [
        (
            pair().with_master(advertised=Probe(address="172.17.0.1:10911", error="No route to host")),
            "172.17.0.1:10911 (an address of docker0): No route to host",
        )
    ],
    "advertised-address-of-another-broker": [
        (
            pair().with_slave(
                advertised=Probe(address="172.17.0.1:10911", broker_name="broker-a", broker_id=0)
            ),
            "where broker-a (0) answers",
        )
    ],
    "advertised-address-local": [
        (pair().with_master_config(brokerIP1="127.0.0.1"), "a loopback address"),
        (pair("4.9.7").with_slave_config(brokerIP2="172.17.0.1"), "docker0"),
        (on_file("brokerIP1=172.17.0.1"), "broker.conf:1: brokerIP1 is 172.17.0.1"),
        (
            on_file(
                "brokerIP2=127.0.0.1; brokerIP1=10.0.0.1; brokerRole=SLAVE; brokerId=1; "
                "haMasterAddress=10.0.0.7:10912"
            ),
            "brokerIP2 is 127.0.0.1",
        ),
    ],
    "ha-address-unreachable": [
        (pair().with_master_status(connections=()), "10.0.0.1:10912 to slaves"),
        (late("4.9.7", start=10, end=END), "10.0.0.1:10912 to slaves"),
    ],
    "vip-port-unreachable": [
        (
            pair("4.9.7").with_master(vip=Probe(address="10.0.0.1:10909", error="Connection refused")),
            "10.0.0.1:10909: Connection refused",
        )
    ],
    "ha-port-exposed": [
        (pair("5.5.0").with_master(ha=open_port("10.0.0.1:10912")), f"from {CLIENT}"),
        (pair("4.9.7").with_slave(ha=open_port("10.0.0.2:10912")), f"from {CLIENT}"),
        (pair().with_master(ha=open_port("10.0.0.1:10912")), f"from {CLIENT}"),
    ],
    "sync-master-waits-for-nobody": [
        (pair("5.5.0", copies=1), "inSyncReplicas is 1"),
        (pair("5.3.3", copies=1), "inSyncReplicas is 1"),
        (on_file("brokerRole=SYNC_MASTER", version="5.4.0"), "is not set: 1 by default"),
        (on_file("brokerRole=SYNC_MASTER"), "4.9 waits for one"),
    ],
    "too-few-slaves-in-sync": [
        (pair().with_master_status(in_sync_slaves=0), "puts wait for 1, in sync: 0"),
        (pair("5.5.0", copies=3).with_master_status(in_sync_slaves=1), "puts wait for 2, in sync: 1"),
    ],
    "sync-degrades-silently": [
        (pair("5.5.0").with_master_config(enableAutoInSyncReplicas="true"), "minInSyncReplicas is 1"),
        (
            on_file("brokerRole=SYNC_MASTER; inSyncReplicas=2; enableAutoInSyncReplicas=true"),
            "minInSyncReplicas is 1",
        ),
    ],
    "forged-ack": [
        (
            pair("5.5.0").with_connection(ack_offset=END + 9, lag_bytes=-9),
            "9 bytes beyond the end of the log",
        ),
        (
            pair().with_master_status(ended_connections={"EOF": 3, "ACK_BEYOND_SENT": 2}),
            "ended with ACK_BEYOND_SENT since the start: 2",
        ),
    ],
    "unlisted-replica": [
        (
            pair("5.5.0")
            .with_master_status(
                connections=tuple(
                    ConnectionStatus(address=f"10.0.0.{host}:4000", ack_offset=END, sent_offset=END)
                    for host in (2, 8)
                )
            )
            .facts(name_servers=listed((0, MASTER), (1, SLAVE))),
            "connected: 10.0.0.2:4000, 10.0.0.8:4000",
        )
    ],
    "slave-not-connected": [
        (pair().with_master_status(connections=()), "lists no connection of a slave"),
        (pair().with_client(state="READY"), "the slave's connection is READY"),
        (pair("5.5.0").with_client(last_read_ms=0), "never received anything"),
        (pair("5.5.0").with_client(last_read_ms=NOW_MS - 31_000), "received nothing for 31 s"),
        (pair("5.3.3").with_client(master_address=None), "has no address of its master"),
    ],
    "slave-below-minimum": [
        (late(kind, start=10, end=END, first=20_000), "ends at 10, the master's begins at 20000")
        for kind in KINDS
    ],
    "slave-beyond-end": [(ahead(kind), "1 bytes beyond") for kind in KINDS],
    "slave-refuses-log": [
        (pair().with_client(verdict="DIVERGED: at offset 4096"), "DIVERGED: at offset 4096")
    ],
    "slave-not-admitted": [
        (pair().with_client(verdict="REFUSED: 3 connections ended without an answer"), "without an answer"),
        (pair().with_client(verdict="OTHER_MASTER: its brokerName is b"), "its brokerName is b"),
    ],
    "disk-full": [
        (
            pair().with_master_status(
                put_refusal="/store: no 1 bytes could be reserved: No space left on device",
                put_statuses={"SERVICE_NOT_AVAILABLE": 18_065},
            ),
            "No space left on device; 18065 puts",
        ),
        (
            pair("5.5.0").with_master_status(table=BrokerRuntimeInfo(disk_ratio=0.91)),
            "the disk is 91% full, messages are refused from 90 % on",
        ),
    ],
    "slave-not-in-sync": [
        (
            pair("4.9.7")
            .with_master_config(haSlaveFallbehindMax="40000")
            .with_slave_status(max_offset=END - 40_000),
            "lacks 40000 bytes; in sync are less than 40000",
        )
    ],
    "retention-overtakes-slave": [
        (late("5.5.0", start=5_000, end=END, first=1), "in the master's oldest file (1 to 10000)"),
        (late("4.9.7", start=25_000, end=END, ratio=0.76), "the disk is 76% full"),
        (late("trioha", start=25_000, end=END, ratio=0.76), "the disk is 76% full"),
    ],
    "file-sizes-differ": [
        (
            pair("4.9.7").with_slave_config(mappedFileSizeCommitLog="20000"),
            "is 10000 at the master, 20000 at the slave",
        )
    ],
    "record-not-dispatched": [
        (pair().with_slave_status(dispatch_fault="body CRC 1 is not 2 at offset 9"), "body CRC 1 is not 2")
    ],
    "log-unreadable": [
        (
            pair().with_slave_status(read_faults=3, read_fault="/data/0 at offset 9: cannot be read"),
            "3 reads failed, the last one: /data/0 at offset 9",
        )
    ],
    "cannot-be-written": [
        (
            pair().with_slave_status(
                unwritten={"index": "/store/index: No space left on device"}, write_failures={"index": 3}
            ),
            "index: /store/index: No space left on device (3 failures since its start)",
        )
    ],
    "topics-late": [
        (
            pair("5.5.0").with_master(tables=tables(("Orders", "New"), changed_ms=NOW_MS - 131_000)),
            "missing at the slave: New",
        ),
        (pair().with_slave(tables=tables(("Orders", "Old"))), "only at the slave: Old"),
        (
            pair("4.9.7").with_master(tables=tables(("Orders", "New"), changed_ms=NOW_MS - 31_000)),
            "missing at the slave: New",
        ),
    ],
    "groups-late": [
        (pair().with_master(tables=tables(groups=("billing", "mail"))), "missing at the slave: mail")
    ],
    "metadata-copy-fails": [
        (
            pair().with_slave_status(metadata=metadata_copies(error="Connection refused")),
            "from 10.0.0.1:10911: topics, consumerOffsets, delayOffsets: Connection refused",
        ),
        (pair().with_slave_status(metadata=metadata_copies(age_ms=31_000)), "copied 31 s ago"),
        (
            pair().with_slave_status(metadata=metadata_copies(address=None, age_ms=None)),
            "whose address it does not know: topics, consumerOffsets, delayOffsets: never copied",
        ),
    ],
    "offsets-missing": [(pair().with_slave(tables=tables(offset=None)), "Orders@billing")],
    "offsets-ahead": [
        (
            pair("4.9.7").with_slave(tables=tables(offset=8)),
            "Orders@billing queue 0: 8 at the slave, 7 at the master",
        )
    ],
    "delay-offsets-late": [(pair("5.5.0").with_slave(tables=tables(delay=None)), "levels without an offset")],
    "handover-early": [
        (Facts(brokers=(pair().master,), thresholds=HANDOVER), "no master with its slave among them"),
        (late("5.5.0", start=END - 1000, end=END).facts(thresholds=HANDOVER), "1,000 bytes of the log"),
        *(
            (pair().with_slave(tables=given).facts(thresholds=HANDOVER), evidence)
            for given, evidence in (
                (tables((), changed_ms=LATE_MS), "topics missing at the slave: Orders"),
                (tables(groups=()), "groups missing at the slave: billing"),
                (tables(offset=6), "newer offsets of (topic@group): Orders@billing"),
                (tables(offset=None), "newer offsets of (topic@group): Orders@billing"),
                (tables(delay=2), "newer delay levels"),
                (Tables(), "the delay levels of one of them are not known"),
            )
        ),
    ],
    "setting-invalid": [
        (with_file("4.9.7", "slaveTimeout=3s"), "slaveTimeout=3s"),
        (on_file("brokerRole=SYNC"), "brokerRole: 'SYNC'"),
        (on_file("haSendHeartbeatInterval=5000 ; brokerName=a"), "with a blank after it"),
        (on_file("slaveTimeout=0"), "slaveTimeout: 0"),
        (on_file("trioha.haRole=spy"), "trioha.haRole"),
        (on_file("namesrvAddr=a:9876,b:9876"), "namesrvAddr: "),
        (on_file("namesrvAddr=10.0.0.1"), "it has no port"),
        (on_file("namesrvAddr=10.0.0.1:port", version="5.5.0"), "'port' is not a port"),
    ],
    "setting-out-of-range": [
        (
            pair("5.5.0").with_master_config(haTransferBatchSize="4194304"),
            "slaves never complete such a frame",
        ),
        (pair("4.9.7").with_master_config(slaveTimeout="0"), "slaveTimeout=0"),
    ],
    "setting-unknown": [(on_file("brokerRol=SLAVE"), "brokerRol=SLAVE")],
    "setting-ignored": [
        (with_file("4.9.7", "inSyncReplicas=2"), "not used by RocketMQ 4.9.7: 5.x has it"),
        (with_file("5.5.0", "haSlaveFallbehindMax=1000"), "5.x calls it haMaxGapNotInSync"),
        (on_file("enableSplitMetadata=true", version="5.3.3"), "new in 5.4"),
        (on_file("persistConsumerOffsetIncrementally=true", version="5.4.0"), "new in 5.5"),
        (on_file("haListenPort=42225; listenPort=42220", version="4.9.7"), "which is 42221"),
    ],
    "setting-not-in-effect": [
        (with_file("5.5.0", "slaveTimeout=5000"), "slaveTimeout is 5000, in effect is 3000")
    ],
    "ha-master-address-ignored": [
        (pair("5.5.0").with_slave_config(haMasterAddress="10.0.0.1:10912"), "RocketMQ 5.5.0 never dials it"),
        (
            on_file(
                "brokerRole=SLAVE; brokerId=1; haMasterAddress=h:10912; namesrvAddr=n:9876", version="5.3.3"
            ),
            "broker.conf:3: haMasterAddress is h:10912",
        ),
    ],
    "slave-without-name-server": [
        (pair("4.9.7").with_slave_config(namesrvAddr=""), "namesrvAddr is empty"),
        (on_file("brokerRole=SLAVE; brokerId=1; haMasterAddress=h:1"), "namesrvAddr is empty"),
    ],
    "heartbeat-above-housekeeping": [
        (pair("5.5.0").with_master_config(haSendHeartbeatInterval="20000"), "sends heartbeats each 20000 ms"),
        (pair().with_master_config(haHousekeepingInterval="4000"), "closes after 4000 ms without one"),
    ],
    "flow-control-spins": [(pair("5.5.0").with_master_config(haFlowControlEnable="true"), "is true")],
    "node-warns": [
        (pair().with_master_status(warnings=("a.conf:3: something",)), "a.conf:3"),
        (
            on_file("trioha.haRole=observer; brokerRole=ASYNC_MASTER; haMasterAddress=h:1"),
            "is not used by a ASYNC_MASTER",
        ),
    ],
    "archive-fenced": [
        (archived(state="fenced", error="another writer archives here: h:/s, epoch 3,"), "h:/s, epoch 3,")
    ],
    "archive-damaged": [(archived(state="damaged", error="body CRC 1 is not 2 at offset 9"), "offset 9")],
    "archive-fails": [
        (
            archived(state="waiting", error="503 Slow Down", failures=4),
            "503 Slow Down; 100 bytes of the log are not archived, 4 attempts failed",
        ),
        (
            archived(state="waiting", error="denied", lag_bytes=None, failures=1),
            "denied; an unknown part of the log are not archived",
        ),
    ],
    "archive-behind": [
        (archived(lag_ms=300_001), "100 bytes are not archived, the oldest for 300 s"),
        (
            archived(lag_ms=400_001).with_master_config(**{"trioha.archiveInterval": "100000"}),
            "the oldest for 400 s",
        ),
        (
            archived(state="starting", archived_offset=None, lag_ms=None),
            "nothing is known of the archive 3600 s after the start",
        ),
    ],
    "archive-hole": [
        (archived(files_deleted_unarchived=2), "2 log files since the start"),
        (
            archived(files_deleted_unarchived=1).with_master_config(**{"trioha.archiveBeforeDelete": "true"}),
            "1 log files since the start",
        ),
    ],
    "pending-not-delivered": [
        (
            left_by_rocketmq(timers=3, timers_first_ms=1000, timers_last_ms=2000),
            "3 timers due from 1970-01-01",
        ),
        (
            left_by_rocketmq(popped=4, popped_first_ms=1000, popped_groups={"T@G": 4}),
            "4 popped messages without acknowledgement of T@G (4), since 1970-01-01",
        ),
        (left_by_rocketmq(unreadable=1), "1 record of pops in an unknown format"),
        (left_by_rocketmq(error="bad disk"), "what is pending could not be counted: bad disk"),
        (
            Facts(stores=(StoreFacts(path="/store", pending=PendingStatus(timers=1)),)),
            "1 timer due at 1970-01-01",
        ),
        (
            Facts(
                stores=(StoreFacts(path="/store", pending=PendingStatus(timers=1), pending_doubt="is cut"),)
            ),
            "; counted without RocketMQ's check point: is cut",
        ),
    ],
    "unread-store": [
        (
            pair("5.5.0")
            .with_slave_status(flushed_offset=END)
            .with_master_config(popConsumerKVServiceEnable="true"),
            "popped messages (popConsumerKVServiceEnable of the master)",
        ),
        (
            left_by_rocketmq(unread_stores=("kvStore (popped messages)", "newKind (RocksDB)")),
            "kvStore (popped messages), newKind (RocksDB)",
        ),
        (
            Facts(stores=(StoreFacts(path="/store", pending=PendingStatus(unread_stores=("kvStore",))),)),
            "kvStore",
        ),
    ],
    "archive-shared": [
        (
            pair()
            .with_master_config(**{"trioha.archiveUrl": "s3://backups/a"})
            .with_slave_config(**{"trioha.archiveUrl": "s3://backups/a/"}),
            f"trioha.archiveUrl=s3://backups/a of {MASTER}, {SLAVE}",
        )
    ],
    "controller-unreachable": [
        (
            under(leader(), ControllerFacts(address="10.0.0.6:9878", error="refused")),
            "refused; named by another controller",
        ),
        (
            under(ControllerFacts(address=CONTROLLER, error="refused")),
            f"refused; named by {MASTER}, {SLAVE}; no controller answers",
        ),
    ],
    "controllers-without-leader": [
        (
            under(
                ControllerFacts(address=CONTROLLER, leader="10.0.0.6:9878"),
                ControllerFacts(address="10.0.0.6:9878", error="refused"),
            ),
            f"answer without leading: {CONTROLLER} (names 10.0.0.6:9878); no answer: 10.0.0.6:9878",
        )
    ],
    "controllers-differ": [
        (
            under(both=controlled().with_slave_config(controllerAddr=f"{CONTROLLER};10.0.0.6:9878")),
            f"{MASTER} lacks 10.0.0.6:9878",
        )
    ],
    "not-at-controllers": [
        (under(leader(None)), f"{CONTROLLER} has no group of that name, not this broker of broker-a"),
        (
            under(leader(evolve(IN_SET, in_sync=(entry(1, MASTER),)))),
            f"{CONTROLLER} has ids 1, not this broker of broker-a, id 2",
        ),
        (
            under(
                leader(evolve(IN_SET, in_sync=(entry(1, MASTER), entry(2, SLAVE, is_alive=False)))),
                both=controlled("5.5.0"),
            ),
            f"takes id 2 at {SLAVE} for dead",
        ),
        (
            under(
                leader(None),
                both=controlled().with_master_status(
                    control=ControlStatus(broker_id=1, refusal="CONTROLLER_BROKER_ID_INVALID")
                ),
            ),
            "they refused it: CONTROLLER_BROKER_ID_INVALID",
        ),
    ],
    "group-without-master": [
        (
            under(
                leader(
                    ReplicaSetInfo((entry(1, MASTER, is_alive=False),), (entry(2, SLAVE),), None, None, 2, 3)
                )
            ),
            "sync-state set {1}, of which do not live: 1; living brokers outside of it: 2",
        )
    ],
    "past-master": [
        (
            under(leader(evolve(IN_SET, master_id=2, master_address=SLAVE, master_epoch=3))),
            f"it is master of epoch 2; the controllers have broker 2 at {SLAVE} as master of epoch 3",
        ),
        (
            under(
                leader(evolve(IN_SET, master_id=2, master_address=SLAVE, master_epoch=3)),
                both=controlled("5.5.0"),
            ),
            f"it is master; the controllers have broker 2 at {SLAVE} as master of epoch 3",
        ),
    ],
    "outside-sync-state-set": [
        (
            under(leader(evolve(IN_SET, in_sync=(entry(1, MASTER),), not_in_sync=(entry(2, SLAVE),)))),
            "id 2 is not in {1} of epoch 2",
        )
    ],
    "in-sync-minimum-not-reached": [
        (
            under(
                leader(evolve(IN_SET, in_sync=(entry(1, MASTER),), not_in_sync=(entry(2, SLAVE),))),
                both=controlled(minInSyncReplicas="2"),
            ),
            "minInSyncReplicas is 2, in sync: 1; the set is {1}",
        ),
        (
            under(both=controlled(minInSyncReplicas="3")),
            "minInSyncReplicas is 3, in sync: 2; the group has only 2",
        ),
        (
            under(both=controlled("5.5.0", minInSyncReplicas="2")),
            "minInSyncReplicas is 2, and the group has 2 brokers: without one of them messages are refused",
        ),
    ],
    "identity-differs": [
        (under(files=(controlled_file("", identity=IdentityFacts(path="/s/i", error="is odd")),)), "is odd"),
        (
            under(
                files=(
                    controlled_file(
                        "",
                        identity=IdentityFacts(
                            path="/s/i", cluster_name="c", broker_name="other", broker_id=1
                        ),
                    ),
                )
            ),
            "/s/i is of c/other, the file says c/broker-a",
        ),
        (
            Facts(
                files=tuple(
                    controlled_file(
                        "listenPort=10911",
                        path=path,
                        identity=IdentityFacts(
                            path=path, cluster_name="c", broker_name="broker-a", broker_id=7
                        ),
                    )
                    for path in ("a.conf", "b.conf")
                )
            ),
            "a.conf and b.conf have one id",
        ),
    ],
    "epochs-do-not-fit": [
        (
            under(both=controlled().with_slave(epochs=epochs((1, 0), (2, END + 1)))),
            f"epoch 2 begins at {END + 1}, the log ends at {END}",
        ),
        (
            under(both=controlled("5.5.0").with_slave(epochs=epochs((1, 0), (2, 800)))),
            f"epoch 2 begins at 700 in the log of {MASTER}, at 800 in that of {SLAVE}",
        ),
        (
            under(leader(evolve(IN_SET, master_epoch=1))),
            "its log has epoch 2, the controllers are at epoch 1",
        ),
        (
            under(
                files=(
                    controlled_file("", epoch_file=EpochFileFacts(path="/s/e", error="it has no entries")),
                )
            ),
            "it has no entries",
        ),
        (
            under(
                files=(
                    controlled_file(
                        "",
                        epoch_file=EpochFileFacts(
                            path="/s/e", last_epoch=2, last_start_offset=501, log_end_max=500
                        ),
                    ),
                )
            ),
            "epoch 2 begins at 501, the log's files end at 500",
        ),
    ],
    "clocks-apart": [
        (pair().with_slave(clock=clock(ahead_ms=3_001)), "at least 2.0 s ahead of its master's"),
        (pair("4.9.7").with_master(clock=clock(ahead_ms=60_000)), "59.0 s behind"),
    ],
}
"""Findings with a fault, and a part of the evidence, by the id of the finding."""

SOUND: Final[Mapping[str, list[Facts | PairFacts]]] = {
    "access-control-differs": [
        pair().with_master_config(**CHECKED).with_slave_config(**CHECKED),
        # A real broker does not report the switches of users.
        pair("5.5.0").with_slave_config(authenticationEnabled="true"),
    ],
    "users-differ": [
        with_users(pair(), USERS, USERS),
        # Without an account nothing is known.
        with_users(pair(), USERS, None),
    ],
    "ha-port-open": [
        pair(),
        pair().with_master_config(**CHECKED),
        pair("5.5.0").with_master_config(aclEnable="true"),
    ],
    "broker-unreachable": [Facts(brokers=(dead(is_refused=True),))],
    "broker-refuses": [Facts(brokers=(dead(),))],
    "name-server-unreachable": [pair().facts(name_servers=listed((0, MASTER), (1, SLAVE)))],
    "not-registered": [
        pair().facts(name_servers=listed((0, MASTER), (1, SLAVE))),
        pair().facts(name_servers=listed(error="no answer")),
    ],
    "registered-with-other-address": [
        # A dead slave that runs nowhere else.
        Facts(brokers=(pair().master, dead(is_named=False)), name_servers=listed((0, MASTER), (1, SLAVE)))
    ],
    "no-master": [
        Facts(brokers=(pair().slave,)),
        Facts(brokers=(pair().slave, dead(MASTER)), name_servers=listed((0, MASTER), (1, SLAVE))),
    ],
    "two-masters": [
        second_master(broker_name="broker-b"),
        # One broker that was reached at two addresses.
        Facts(brokers=(pair().master, evolve(pair().master, address="10.1.0.1:10911"), pair().slave)),
    ],
    "duplicate-broker-id": [second_slave(broker_id=2)],
    "name-mismatch": [second_slave(broker_name="broker-b", client=None)],
    "role-and-id": [
        on_file("brokerRole=SLAVE; brokerId=1; brokerName=a"),
        on_file("enableControllerMode=true; brokerId=1; brokerName=a"),
    ],
    "advertised-address-unreachable": [pair().with_master(advertised=open_port("10.9.0.1:10911"))],
    "advertised-address-of-another-broker": [
        pair().with_slave(advertised=Probe(address="10.9.0.2:10911", broker_name="broker-a", broker_id=1)),
        pair().with_slave(advertised=open_port("10.9.0.2:10911")),
    ],
    "advertised-address-local": [
        pair()
        .with_master(address="127.0.0.1:10911", peer_host="127.0.0.1")
        .with_master_config(brokerIP1="127.0.0.1", brokerIP2="127.0.0.1"),
        on_file("brokerIP1=127.0.0.1"),
        on_file("brokerIP1=10.0.0.1; brokerIP2=192.168.0.1"),
    ],
    "ha-address-unreachable": [
        pair(),
        pair().with_master_status(connections=()).with_master(ha=open_port("10.0.0.1:10912")),
    ],
    "vip-port-unreachable": [pair().with_master(vip=Probe(address="10.0.0.1:10909", error="refused"))],
    "ha-port-exposed": [
        pair().with_master(ha=open_port("10.0.0.1:10912", closed=True)),
        pair("5.5.0").with_master(ha=open_port("10.0.0.1:10912", source="10.0.0.2")),
        pair("5.5.0").with_master(ha=open_port("10.0.0.1:10912", source="10.0.0.1")),
        pair()
        .with_master(ha=open_port("10.0.0.1:10912"))
        .with_master_config(**{"trioha.haTlsCert": "/a.pem"}),
    ],
    "sync-master-waits-for-nobody": [
        pair("4.9.7"),
        pair("trioha", copies=1),
        pair("5.5.0", role="ASYNC_MASTER", copies=1),
        on_file("brokerRole=SYNC_MASTER", version="4.9.7"),
        pair("5.5.0", copies=1).with_master(config=None),
        pair("5.5.0", copies=1).with_master_config(enableControllerMode="true", allAckInSyncStateSet="true"),
    ],
    "too-few-slaves-in-sync": [
        pair("5.5.0"),
        pair("5.5.0", copies=1).with_master_status(in_sync_slaves=0),
        pair(role="ASYNC_MASTER").with_master_status(in_sync_slaves=0),
        # As `trioha status` sees the first node of a group that controllers govern.
        pair()
        .with_master(config=None)
        .with_master_status(
            in_sync_slaves=0, control=ControlStatus(role="master", broker_id=1, sync_state_set=(1,))
        ),
    ],
    "sync-degrades-silently": [
        pair("5.5.0").with_master_config(enableAutoInSyncReplicas="true", minInSyncReplicas="2"),
        on_file("brokerRole=SYNC_MASTER; enableAutoInSyncReplicas=true", version="4.9.7"),
    ],
    "forged-ack": [
        # Appended between the two figures of one answer.
        pair("5.5.0").with_connection(ack_offset=END, lag_bytes=-9),
        pair().with_master_status(ended_connections={"EOF": 3}),
    ],
    "unlisted-replica": [
        pair("5.5.0").facts(name_servers=listed((0, MASTER), (1, SLAVE))),
        pair("5.5.0")
        .with_master_status(
            connections=(
                ConnectionStatus(address="10.0.0.2:4000", ack_offset=END, sent_offset=END),
                ConnectionStatus(address="10.0.0.8:4000", ack_offset=-1, sent_offset=-1),
            )
        )
        .facts(name_servers=listed((0, MASTER), (1, SLAVE))),
    ],
    "controller-unreachable": [under()],
    "controllers-without-leader": [
        # controller-unreachable reports it.
        under(ControllerFacts(address=CONTROLLER, error="refused")),
        under(leader(gap="SYSTEM_ERROR")),
    ],
    "controllers-differ": [under(both=controlled(controllerAddr=f" {CONTROLLER} ; 10.0.0.6:9878;")), pair()],
    "not-at-controllers": [
        # Registered by another address, as behind a proxy.
        under(leader(evolve(IN_SET, in_sync=(entry(1, "10.9.0.1:10911"), entry(2, "10.9.0.2:10911"))))),
        under(ControllerFacts(address=CONTROLLER, error="refused")),
        under(both=controlled("5.5.0")),
    ],
    "group-without-master": [under()],
    "past-master": [under(both=controlled("5.5.0")), under()],
    "outside-sync-state-set": [
        under(
            leader(evolve(IN_SET, in_sync=(entry(1, MASTER),), not_in_sync=(entry(2, SLAVE),))),
            both=controlled().with_slave_config(asyncLearner="true"),
        ),
        # not-at-controllers reports it.
        under(
            leader(
                evolve(IN_SET, in_sync=(entry(1, MASTER),), not_in_sync=(entry(2, SLAVE, is_alive=False),))
            )
        ),
    ],
    "in-sync-minimum-not-reached": [
        under(),
        under(
            leader(evolve(IN_SET, in_sync=(*IN_SET.in_sync, entry(3, "10.0.0.3:10911")))),
            both=controlled(minInSyncReplicas="2"),
        ),
    ],
    "identity-differs": [
        under(
            files=(
                controlled_file(
                    "brokerId=-1; brokerRole=SLAVE",
                    identity=IdentityFacts(path="/i", cluster_name="c", broker_name="broker-a", broker_id=1),
                ),
            )
        )
    ],
    "epochs-do-not-fit": [
        # A slave that has not received the last epoch yet.
        under(both=controlled().with_slave(epochs=epochs((1, 0)))),
        under(
            files=(
                controlled_file(
                    "",
                    epoch_file=EpochFileFacts(
                        path="/s/e", last_epoch=2, last_start_offset=500, log_end_max=500
                    ),
                ),
            )
        ),
    ],
    "slave-not-connected": [pair("5.5.0").with_client(last_read_ms=NOW_MS - 29_000), pair("4.9.7")],
    "slave-below-minimum": [
        late("5.5.0", start=20_000, end=END, first=20_000),
        late("5.5.0", start=0, end=END, first=20_000),
    ],
    "slave-beyond-end": [late("4.9.7", start=END, end=END)],
    "slave-refuses-log": [pair().with_client(verdict="")],
    "slave-not-in-sync": [
        pair("4.9.7")
        .with_master_config(haSlaveFallbehindMax="40000")
        .with_slave_status(max_offset=END - 39_999),
        # slave-below-minimum reports it.
        late("5.5.0", start=10, end=10 + (1 << 29), first=20_000),
    ],
    "retention-overtakes-slave": [
        # The file has just been filled, and the slave is a little late.
        late("5.5.0", start=9_900, end=10_100, first=0),
        late("trioha", start=5_000, end=END, first=1),
        late("5.5.0", start=25_000, end=END, ratio=0.74),
        late("5.5.0", start=END - FILE_BYTES + 1, end=END, ratio=0.99),
    ],
    "file-sizes-differ": [pair().with_slave(config=None)],
    "record-not-dispatched": [pair()],
    "log-unreadable": [pair()],
    "cannot-be-written": [pair().with_slave_status(write_failures={"index": 3})],
    "topics-late": [
        pair("5.5.0").with_master(tables=tables(("Orders", "New"), changed_ms=NOW_MS - 129_000)),
        pair("4.9.7").with_slave(tables=tables(("Orders", "BenchmarkTest", "broker-a"))),
        pair().with_slave(tables=tables(("Old",)), clock=clock(uptime_s=30)),
        pair()
        .with_master(tables=tables(("Orders", "New")))
        .facts(thresholds=Thresholds(metadata_late_s=3_000)),
    ],
    "groups-late": [pair().with_master(tables=tables(groups=("billing", "mail"), changed_ms=LATE_MS))],
    "metadata-copy-fails": [
        pair().with_slave_status(metadata=metadata_copies(age_ms=30_000)),
        pair()
        .with_slave_status(metadata=metadata_copies(age_ms=180_000))
        .with_slave_config(**{"trioha.metadataSyncPeriod": "60000"}),
        pair().with_slave_status(metadata=metadata_copies(age_ms=None)).with_slave(clock=clock(uptime_s=30)),
    ],
    "offsets-missing": [
        # A trioha slave has copied what there was a moment ago.
        pair()
        .with_slave_status(metadata=metadata_copies(age_ms=2_000))
        .with_slave(tables=tables(offset=None, delay=None)),
        pair().with_master(tables=tables(offset=None)),
        pair("5.5.0").with_slave(tables=tables(offset=None), clock=clock(uptime_s=130)),
        # A group that is new at the master.
        pair().with_master(tables=tables(changed_ms=NOW_MS - 5_000)).with_slave(tables=tables(offset=None)),
    ],
    "offsets-ahead": [pair().with_slave(tables=tables(offset=6))],
    "delay-offsets-late": [
        pair().with_slave(tables=tables(delay=0)),
        # It has them in its file only.
        pair("4.9.7").with_slave(tables=tables(delay=None)),
        pair().with_master(tables=tables(delay=0)).with_slave(tables=tables(delay=None)),
    ],
    "handover-early": [
        pair().facts(thresholds=HANDOVER),
        # A slave may have topics of its own, and be behind where nobody asks.
        pair().with_slave(tables=tables(("Orders", "BenchmarkTest"))).facts(thresholds=HANDOVER),
        pair().with_slave(tables=tables(offset=6)),
    ],
    "setting-invalid": [
        on_file("brokerRole=SLAVE; brokerId=1; storePathCommitLog=/a,/b", version="5.5.0"),
        on_file("slaveTimeout=+3000; brokerName=a"),
        on_file("slaveTimeout=3000 ", version="5.5.0"),
    ],
    "setting-out-of-range": [pair("5.5.0").with_master_config(haTransferBatchSize="4194292")],
    "slave-not-admitted": [pair().with_client(verdict="GAP: the master begins at 9")],
    "disk-full": [
        pair("5.5.0").with_master_status(table=BrokerRuntimeInfo(disk_ratio=0.89)),
        pair().with_master_status(put_statuses={"SERVICE_NOT_AVAILABLE": 18_065}),
    ],
    "setting-unknown": [on_file("dLegerGroup=a; tls.server.mode=disabled; trioha.haRole=replica")],
    "setting-ignored": [
        with_file("5.5.0", "inSyncReplicas=2"),
        on_file("inSyncReplicas=2; enableSplitMetadata=true"),
        on_file("haListenPort=42221; listenPort=42220", version="4.9.7"),
        on_file("haListenPort=42225; listenPort=42220", version="5.3.3"),
    ],
    "setting-not-in-effect": [with_file("5.5.0", "slaveTimeout=+3000; namesrvAddr=10.0.0.5:9876")],
    "ha-master-address-ignored": [
        pair("4.9.7").with_slave_config(haMasterAddress="10.0.0.1:10912"),
        pair().with_slave_config(haMasterAddress="10.0.0.1:10912"),
        pair("5.5.0").with_slave_config(haMasterAddress=""),
    ],
    "slave-without-name-server": [
        pair().with_slave_config(namesrvAddr=""),
        pair("4.9.7").with_slave(config=None),
    ],
    "heartbeat-above-housekeeping": [pair("5.5.0").with_master_config(haSendHeartbeatInterval="19999")],
    "flow-control-spins": [pair().with_master_config(haFlowControlEnable="true")],
    "node-warns": [on_file("trioha.haRole=observer; brokerIP1=10.0.0.1; brokerIP2=10.0.0.1")],
    "archive-fenced": [archived()],
    "archive-damaged": [archived()],
    "archive-fails": [archived(state="starting", archived_offset=None)],
    "archive-behind": [
        archived(lag_ms=300_000),
        archived(lag_ms=None),
        archived(state="waiting", lag_ms=10**9),
        archived(lag_ms=400_000).with_master_config(**{"trioha.archiveInterval": "100000"}),
        archived(state="starting", lag_ms=None).with_master(clock=clock(uptime_s=300)),
        archived(state="starting", lag_ms=None).with_master(clock=None),
    ],
    "pending-not-delivered": [left_by_rocketmq(), left_by_rocketmq(unread_stores=("kvStore",))],
    "unread-store": [
        left_by_rocketmq(),
        left_by_rocketmq(timers=3),
        # The check is for trioha slaves: a RocketMQ slave gets no finding.
        pair("5.5.0").with_master_config(popConsumerKVServiceEnable="true"),
        pair().with_master_config(popConsumerKVServiceEnable="false"),
    ],
    "archive-hole": [archived()],
    "archive-shared": [
        pair()
        .with_master_config(**{"trioha.archiveUrl": "s3://backups/a"})
        .with_slave_config(**{"trioha.archiveUrl": "s3://backups/a-slave"}),
        pair().with_master_config(**{"trioha.archiveUrl": ""}),
    ],
    "clocks-apart": [
        pair().with_slave(clock=clock(ahead_ms=3_000)),
        pair().with_slave(clock=None),
        pair().with_slave(clock=clock(ahead_ms=60_000)).facts(thresholds=Thresholds(clocks_apart_ms=60_000)),
    ],
}
"""Findings of facts that are close to the fault of a check, by its id."""


def findings(case: Facts | PairFacts) -> list[Finding]:
    return diagnose(case if isinstance(case, Facts) else case.facts())


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_pair_has_no_findings(kind, role):
    assert pair(kind, role=role).findings() == []
    assert archived().findings() == []
    assert pair(kind, role=role).findings(name_servers=listed((0, MASTER), (1, SLAVE))) == []


@pytest.mark.parametrize("kind", ["trioha", "5.3.3", "5.5.0"])
def test_a_healthy_pair_in_controller_mode_has_no_findings(kind):
    assert findings(under(both=controlled(kind))) == []
    names = listed((0, MASTER), (2, SLAVE))
    assert controlled(kind).findings(controllers=(leader(),), name_servers=names) == []
    # The file of the master, found by its store's identity, and that of the slave by its address.
    identity = IdentityFacts(path="/i", cluster_name="c", broker_name="broker-a", broker_id=1)
    usual = "mappedFileSizeCommitLog=10000; brokerId=-1; brokerRole=SLAVE"
    files = (
        controlled_file(f"{usual}; listenPort=10911; brokerIP1=10.0.0.1", path="m.conf", identity=identity),
        controlled_file(f"{usual}; brokerIP1=10.0.0.2", path="s.conf"),
    )
    facts = controlled(kind).facts(*files, controllers=(leader(),))
    assert diagnose(facts) == []
    assert [node.conf and node.conf.path for node in Case.of(facts).nodes] == ["m.conf", "s.conf"]


def test_every_check_has_facts_with_and_without_its_fault():
    assert sorted(FAULTS) == sorted(SOUND) == sorted(CHECKS)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_fault_is_found_with_its_evidence_and_a_remedy(name):
    for case, evidence in FAULTS[name]:
        found = [finding for finding in findings(case) if finding.id == name]
        assert found, f"{name}: {evidence}"
        assert any(evidence in finding.evidence for finding in found), [one.evidence for one in found]
        assert all(finding.remedy and finding.subject and finding.title for finding in found)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_facts_close_to_a_fault_are_not_found(name):
    for case in SOUND[name]:
        assert name not in {finding.id for finding in findings(case)}


def test_a_finding_that_depends_on_an_unknown_version_is_a_warning():
    for case, severity in (
        (pair("5.5.0", copies=1), Severity.CRITICAL),
        (on_file("brokerRole=SYNC_MASTER"), Severity.WARNING),
    ):
        (found,) = [one for one in findings(case) if one.id == "sync-master-waits-for-nobody"]
        assert found.severity is severity


def test_the_worst_findings_come_first_and_mild_ones_can_be_left_out():
    facts = (
        pair("5.5.0", copies=1)
        .with_slave(clock=clock(ahead_ms=9_000))
        .with_master_status(warnings=("x",))
        .facts()
    )
    assert [one.severity.word for one in diagnose(facts)] == ["critical", "warning", "notice"]
    assert [one.severity.word for one in diagnose(facts, least=Severity.WARNING)] == ["critical", "warning"]
    assert [one.severity.word for one in diagnose(facts, least=Severity.CRITICAL)] == ["critical"]


def test_a_broker_that_answers_at_two_addresses_is_one_broker():
    both = pair()
    again = evolve(both.master, address="10.1.0.1:10911", is_named=False)
    assert diagnose(Facts(brokers=(both.master, both.slave, again))) == []


def test_a_slave_without_tls_is_told_apart_from_one_with_another_log():
    case = pair().with_client(verdict="REFUSED: 3 connections ended without an answer")
    encrypted = case.with_master_config(**{"trioha.haTlsCert": "/tls/master.pem"})
    (finding,) = [one for one in findings(encrypted) if one.severity is Severity.CRITICAL]
    assert (finding.id, finding.remedy) == (
        "slave-not-admitted",
        "trioha.haTlsCert, haTlsKey and haTlsCa at the slave as at the master, or at neither",
    )


def test_other_file_sizes_are_the_finding_and_not_the_missing_connection():
    case = pair("5.5.0").with_slave_config(mappedFileSizeCommitLog="20000").with_master_status(connections=())
    found = {one.id for one in findings(case)}
    assert "file-sizes-differ" in found
    assert "slave-not-connected" not in found
