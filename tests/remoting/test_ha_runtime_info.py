"""HARuntimeInfo against what real brokers answered, and both ways."""

import json
import re
from collections.abc import Mapping
from types import NoneType
from typing import get_args, get_origin

import pytest
from attrs import evolve, fields, resolve_types
from hypothesis import given
from hypothesis import strategies as st

from tests.remoting.recorded import answers
from trioha.broker_status import (
    BrokerStatus,
    ConnectionStatus,
    ControllerLinkStatus,
    ControlStatus,
    MemberStatus,
    SlaveStatus,
)
from trioha.distribution import Distribution
from trioha.errors import RemoteProtocolError
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.ha_runtime_info import decode_ha_status, encode_ha_status

OFFSETS = st.integers(-1, 2**63 - 1)
TEXT = st.text(min_size=1, max_size=10)
PLAIN = {
    int: OFFSETS,
    str: st.text(max_size=10),
    bool: st.booleans(),
    Distribution: st.builds(Distribution, OFFSETS, OFFSETS, OFFSETS, OFFSETS),
}


def values_of(annotation):
    """A strategy for a field with this annotation."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in PLAIN:
        return PLAIN[origin]
    if NoneType in arguments:
        # An empty text is none, there.
        return st.none() | (TEXT if str in arguments else values_of(arguments[0]))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=3)
    return whole(origin)


def whole(kind, *, without=(), **known):
    """Objects of a class of the status, with any values in all fields but those `without`."""
    types = {one.name: one.type for one in fields(resolve_types(kind)) if one.name not in {*without, *known}}
    return st.builds(kind, **known, **{name: values_of(annotation) for name, annotation in types.items()})


NODES = whole(
    BrokerStatus,
    without=("address", "source", "answer_bytes", "unread_connections", "unread_probes", "client", "table"),
    # What every node says of itself.
    **dict.fromkeys(("version", "cluster_name", "broker_name", "ha_address"), TEXT),
    **dict.fromkeys(("broker_id", "min_offset", "flushed_offset", "in_sync_slaves"), OFFSETS),
)


@pytest.mark.parametrize(
    "session",
    [
        "remoting-5.3.3/038-adm-haStatus--master",
        "remoting-5.3.3/070-probe--master",
        "remoting-5.3.3/071-probe--slave",
    ],
)
def test_recorded_ha_runtime_infos_are_read_and_written_to_the_same_bytes(session):
    answer: RemotingCommand = answers(session)[RequestCode.GET_BROKER_HA_STATUS]
    status = decode_ha_status(answer.body)
    assert not status.is_trioha
    assert encode_ha_status(status) == answer.body


@given(NODES)
def test_the_status_of_a_master_is_read_as_it_was_written(status):
    assert decode_ha_status(encode_ha_status(status)) == status


@given(NODES, whole(SlaveStatus))
def test_the_status_of_a_slave_is_read_as_it_was_written(status, client):
    slave = evolve(status, client=client, max_offset=client.max_offset, in_sync_slaves=None)
    assert decode_ha_status(encode_ha_status(slave)) == slave


def test_controller_mode_is_one_key_that_other_nodes_do_not_have():
    plain = BrokerStatus(version="1.0", role="SYNC_MASTER", flushed_offset=0, in_sync_slaves=0)
    control = ControlStatus(
        role="master",
        step="following",
        broker_id=2,
        master_epoch=5,
        master_id=2,
        master_address="10.0.0.6:10911",
        log_epoch=5,
        sync_state_set=(1, 2),
        sync_state_set_epoch=9,
        in_sync_min=2,
        members=(
            MemberStatus(broker_id=2, in_set=True, is_required=True, is_connected=True, ack_offset=639),
            MemberStatus(broker_id=3, is_required=True),
        ),
        confirm_offset=600,
        leader="10.0.0.1:9878",
        leader_heard_ms=12,
        controllers=(ControllerLinkStatus(address="10.0.0.1:9878", is_connected=True, is_leader=True),),
        role_changes=3,
        role_changed_ms=1_700_000_000_000,
    )
    before = json.loads(encode_ha_status(plain))
    after = json.loads(encode_ha_status(evolve(plain, control=control)))
    assert after["trioha"].pop("control") == {
        "brokerId": 2,
        "confirmOffset": 600,
        "controllers": [{"address": "10.0.0.1:9878", "connected": True, "leader": True}],
        "leader": "10.0.0.1:9878",
        "leaderHeardMillis": 12,
        "logEpoch": 5,
        "masterAddress": "10.0.0.6:10911",
        "masterBrokerId": 2,
        "masterEpoch": 5,
        "members": [
            {"ackOffset": 639, "brokerId": 2, "connected": True, "inSyncStateSet": True, "required": True},
            {"brokerId": 3, "connected": False, "inSyncStateSet": False, "required": True},
        ],
        "minInSyncReplicas": 2,
        "role": "master",
        "roleChangeTimestamp": 1_700_000_000_000,
        "roleChanges": 3,
        "step": "following",
        "syncStateSet": [1, 2],
        "syncStateSetEpoch": 9,
    }
    assert after == before


def test_triohas_keys_are_added_beside_rocketmqs():
    status = BrokerStatus(
        version="1.0",
        role="SYNC_MASTER",
        cluster_name="c",
        broker_name="b",
        broker_id=0,
        min_offset=0,
        max_offset=639,
        flushed_offset=639,
        ha_address="127.0.0.1:10912",
        in_sync_slaves=1,
        connections=(
            ConnectionStatus(
                address="127.0.0.1:36202", sent_offset=639, ack_offset=600, lag_bytes=39, in_sync=True,
                transferred_bytes_per_s=12, state="TRANSFER", lag_ms=4, connection_id=7,
            ),
        ),
        put_statuses={"PUT_OK": 3},
    )  # fmt: skip
    document = json.loads(encode_ha_status(status))
    assert [*document, *document["haClientRuntimeInfo"]] == [
        *("haClientRuntimeInfo", "haConnectionInfo", "inSyncSlaveNums", "master"),
        *("masterCommitLogMaxOffset", "trioha"),
        *("lastReadTimestamp", "lastWriteTimestamp", "masterFlushOffset", "maxOffset"),
        "transferredByteInSecond",
    ]
    assert document["haConnectionInfo"] == [
        {
            "addr": "127.0.0.1:36202",
            "connectionId": 7,
            "diff": 39,
            "inSync": True,
            "lagMillis": 4,
            "slaveAckOffset": 600,
            "state": "TRANSFER",
            "transferFromWhere": 639,
            "transferredByteInSecond": 12,
        }
    ]
    assert document["trioha"] == {
        "version": "1.0",
        "role": "SYNC_MASTER",
        "clusterName": "c",
        "brokerName": "b",
        "brokerId": 0,
        "minOffset": 0,
        "flushedOffset": 639,
        "haAddress": "127.0.0.1:10912",
        "putStatuses": {"PUT_OK": 3},
        "endedConnections": {},
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "bad JSON"),
        (b"null", "HARuntimeInfo: the body is not an object: 'None'"),
        (b"[]", "HARuntimeInfo: the body is not an object: an array"),
        (b'{"master":1}', "master is not true or false: '1'"),
        (b'{"masterCommitLogMaxOffset":"1"}', "masterCommitLogMaxOffset is not an integer: '1'"),
        (b'{"masterCommitLogMaxOffset":9223372036854775808}', "is not an integer: '9223372036854775808'"),
        (b'{"haConnectionInfo":{}}', "haConnectionInfo is not an array: an object"),
        (b'{"haConnectionInfo":[1]}', "ConnectionStatus is not an object: '1'"),
        (b'{"haConnectionInfo":[null]}', "ConnectionStatus is not an object: 'None'"),
        (b'{"haClientRuntimeInfo":[]}', "haClientRuntimeInfo is not an object: an array"),
        (b'{"haConnectionInfo":[{"slaveAckOffset":1.5}]}', "slaveAckOffset is not an integer: '1.5'"),
        (b'{"trioha":{"role":5}}', "role is not a string: '5'"),
        (b'{"trioha":{"warnings":[1]}}', "warnings is not a string: '1'"),
        (b'{"trioha":{"warnings":"one"}}', "warnings is not an array: 'one'"),
        (b'{"trioha":{"probes":{"h":{"EOF":true}}}}', "probes is not an integer: 'True'"),
        (b'{"trioha":{"client":{"observer":1}}}', "observer is not true or false: '1'"),
        (b'{"haConnectionInfo":[{"frameBytes":[1,2,3]}]}', "frameBytes is not four integers: an array"),
    ],
)
def test_an_invalid_body_is_refused_with_key_and_value(body, message):
    with pytest.raises(RemoteProtocolError, match=re.escape(message)):
        decode_ha_status(body)


def test_missing_and_null_members_have_their_fields_defaults():
    assert decode_ha_status(b'{"master":true}') == BrokerStatus(in_sync_slaves=0)
    nulls = (
        b'{"master":true,"masterCommitLogMaxOffset":null,"haConnectionInfo":[{"diff":null}],"trioha":null}'
    )
    assert decode_ha_status(nulls) == BrokerStatus(in_sync_slaves=0, connections=(ConnectionStatus(),))
    assert decode_ha_status(b"{}") == BrokerStatus(client=SlaveStatus())


def test_connections_beyond_the_readers_limit_are_counted_and_not_read():
    replica = {"addr": "10.0.0.1:1", "slaveAckOffset": 5, "transferFromWhere": 5, "state": "TRANSFER"}
    probe = {"addr": "10.0.0.2:1", "slaveAckOffset": -1, "transferFromWhere": -1}
    listed = [*[probe | {"state": "HANDSHAKE"}] * 5, probe, *[replica] * 4, {"slaveAckOffset": "not read"}]
    body = json.dumps({"master": True, "haConnectionInfo": listed}).encode()
    info = decode_ha_status(body, connections_max=3)
    assert [connection.address for connection in info.connections] == ["10.0.0.1:1"] * 3
    assert (info.unread_connections, info.unread_probes) == (2, 6)
    assert not any(connection.is_probe for connection in info.connections)
    few = decode_ha_status(json.dumps({"haConnectionInfo": listed[4:8]}).encode(), connections_max=9)
    assert [connection.is_probe for connection in few.connections] == [True, True, False, False]
    assert (few.unread_connections, few.unread_probes) == (0, 0)
