"""Requests and answers of controllers, against frames of a real 5.3.3 controller and real brokers."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.set_data import elected_body, parse_broker_names, set_data_body
from trioha.controller import bodies, header, protocol
from trioha.controller.bodies import EpochCache, MemberSet, elected_members
from trioha.errors import RemoteProtocolError
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.fastjson import parse_json

RECORDED = Path(__file__).parents[1] / "vectors" / "controller-5.3.3" / "frames.jsonl"

REQUESTS: dict[int, type[header.Header]] = {
    kind.CODE: kind
    for kind in (
        protocol.NextBrokerIdRequest,
        protocol.ApplyBrokerIdRequest,
        protocol.RegisterRequest,
        protocol.ElectRequest,
        protocol.Heartbeat,
        protocol.ReplicaInfoRequest,
        protocol.AlterSetRequest,
        protocol.RoleNotice,
    )
}
WITHOUT_FIELDS = {
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.GET_BROKER_EPOCH_CACHE,
}
ANSWERS: dict[int, type[header.Header]] = {
    kind.CODE: kind
    for kind in (
        protocol.ControllerMetadata,
        protocol.NextBrokerId,
        protocol.Registered,
        protocol.Elected,
        protocol.ReplicaInfo,
        protocol.AlteredSet,
    )
}
READ_BY_CODE = RequestCode.CONTROLLER_APPLY_BROKER_ID
"""Of its answers only the code is read."""
OF_NAME_SERVERS = {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}
SIGNATURE = {"AccessKey", "Signature"}


def recorded() -> list[tuple[int, bool, RemotingCommand]]:
    rows = []
    for line in RECORDED.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        if row["code"] in OF_NAME_SERVERS:
            continue
        decoder = FrameDecoder()
        decoder.feed(base64.b64decode(row["frame"]))
        command = decoder.next_command()
        rows.append((row["code"], row["answer"], command))
    return rows


def reencoded_body(code: int, is_answer: bool, body: bytes) -> bytes:
    if not body:
        return b""
    match RequestCode(code), is_answer:
        case RequestCode.CONTROLLER_ELECT_MASTER, True:
            group: Any = parse_json(body)
            group = group["brokerMemberGroup"]
            addresses = {int(key): address for key, address in group["brokerAddrs"].items()}
            return elected_body(group["cluster"], group["brokerName"], addresses, elected_members(body))
        case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, True:
            return set_data_body(bodies.parse_set_data(body))
        case RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, False:
            return bodies.broker_names_body(parse_broker_names(body))
        case RequestCode.GET_BROKER_EPOCH_CACHE, True:
            return EpochCache.of_body(body).to_body()
        case _:
            return MemberSet.of_body(body).to_body()


def test_every_recorded_frame_decodes_and_encodes_equally() -> None:
    seen = set()
    for code, is_answer, command in recorded():
        kind = (ANSWERS if is_answer else REQUESTS).get(code)
        fields = {key: value for key, value in command.ext_fields.items() if key not in SIGNATURE}
        if not (is_answer and code == READ_BY_CODE):
            assert (kind.of(fields).to_fields() if kind else {}) == fields, (code, is_answer)
        assert reencoded_body(code, is_answer, bytes(command.body)) == command.body, (code, is_answer)
        seen.add((code, is_answer))
    assert {code for code, is_answer in seen if not is_answer} == WITHOUT_FIELDS | set(REQUESTS)
    assert {code for code, is_answer in seen if is_answer} >= set(ANSWERS)


def test_a_recorded_request_is_the_command_that_is_sent() -> None:
    for code, is_answer, command in recorded():
        if is_answer or code in WITHOUT_FIELDS or SIGNATURE & set(command.ext_fields):
            continue
        ours = header.to_request(
            REQUESTS[code].of(command.ext_fields), body=bytes(command.body), oneway=command.is_oneway
        )
        assert (ours.code, ours.flag, ours.ext_fields, ours.body) == (
            command.code,
            command.flag,
            command.ext_fields,
            command.body,
        )


def test_a_missing_field_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match="CONTROLLER_GET_NEXT_BROKER_ID: nextBrokerId is missing"):
        protocol.NextBrokerId.of({})


@pytest.mark.parametrize("text", ["-1", "1_0", "x", "9" * 30])
def test_a_field_that_is_no_number_of_its_range_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="nextBrokerId"):
        protocol.NextBrokerId.of({"nextBrokerId": text})


BODIES = (
    MemberSet.of_body,
    elected_members,
    EpochCache.of_body,
    bodies.parse_set_data,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["syncStateSet", "syncStateSetEpoch", "brokerMemberGroup", "brokerAddrs", "epochList",
                 "replicasInfoTable", "inSyncReplicas", "masterBrokerId", "brokerId", "alive", "epoch"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON.map(json.dumps).map(str.encode) | st.binary(max_size=60))
def test_bodies_of_any_shape_are_read_or_refused(body: bytes) -> None:
    for read in BODIES:
        try:
            read(body)
        except RemoteProtocolError:
            continue


def test_a_set_of_too_many_members_is_refused() -> None:
    body = MemberSet(frozenset(range(bodies.MEMBERS_MAX + 1)), 1).to_body()
    with pytest.raises(RemoteProtocolError, match="more than 1024"):
        MemberSet.of_body(body)
