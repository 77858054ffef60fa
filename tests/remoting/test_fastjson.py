"""fastjson's dialect of JSON."""

import json
from contextlib import suppress

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.remoting.recorded import STREAMS, answers, commands
from trioha.errors import RemoteProtocolError
from trioha.remoting.codes import RequestCode
from trioha.remoting.fastjson import JsonLimits, _Parser, parse_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_both_parsers_read_standard_json_alike(value):
    text = json.dumps(value)
    assert parse_json(text) == value
    assert _Parser(text).parse() == value


@given(st.dictionaries(st.integers(), st.integers(), min_size=1))
def test_bare_integer_keys_become_strings(table):
    text = "{" + ",".join(f"{key}:{value}" for key, value in table.items()) + "}"
    assert parse_json(text) == {str(key): value for key, value in table.items()}


@given(st.text(alphabet="{}[]:,\"'\\0a-1.etru \n", max_size=40))
def test_any_text_gives_a_value_or_a_protocol_error(text):
    with suppress(RemoteProtocolError):
        parse_json(text)


def test_objects_as_keys_become_tuples_of_pairs():
    key = (("brokerName", "b"), ("queueId", 0), ("topic", "T"))
    text = '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5,"minOffset":0}}}'
    assert parse_json(text) == {"offsetTable": {key: {"maxOffset": 5, "minOffset": 0}}}


def test_every_recorded_json_body_of_a_broker_is_read():
    bodies = [
        bytes(command.body)
        for path in STREAMS
        for command in commands(path)
        if command.body[:1] in {b"{", b"["}
    ]
    values = [parse_json(body) for body in bodies]
    assert len(values) > 60
    assert all(isinstance(value, dict) for value in values)


def test_recorded_offset_tables_have_their_queues():
    recorded = answers("remoting-5.3.3/070-probe--master")
    offsets = parse_json(recorded[RequestCode.GET_ALL_CONSUMER_OFFSET].body)
    assert isinstance(offsets, dict)
    for queues in offsets["offsetTable"].values():
        assert all(queue.isdecimal() for queue in queues)
    stats = parse_json(recorded[RequestCode.GET_CONSUME_STATS].body)
    assert isinstance(stats, dict)
    assert all(dict(queue)["brokerName"] == "broker-a" for queue in stats["offsetTable"])


def test_single_quotes_and_escapes_are_read():
    assert parse_json("{'a\\'b':'\\u0041\\n'}") == {"a'b": "A\n"}


@pytest.mark.parametrize(
    "text", ["", "{", "{a}", "{0:1", "[1", "{0:1}}", "{0:}", "{:1}", "nul", "{'a:1}", "[1 2]", '{0:1 "a":2}']
)
def test_an_error_has_its_position(text):
    with pytest.raises(RemoteProtocolError, match="bad JSON at character"):
        parse_json(text)


def test_nesting_without_end_is_refused():
    with pytest.raises(RemoteProtocolError, match="levels"):
        parse_json("[" * 200_000)
    with pytest.raises(RemoteProtocolError, match="levels"):
        parse_json("{0:" * 1000)


def test_limits_bound_the_cost_of_parsing():
    limits = JsonLimits(containers_max=3, dialect_chars_max=10)
    assert parse_json('[[],{"a":"long enough to be over it"}]', limits=limits)
    assert parse_json("{0:1}", limits=limits) == {"0": 1}
    with pytest.raises(RemoteProtocolError, match="more than 3 objects and arrays"):
        parse_json("[[],[],[]]", limits=limits)
    with pytest.raises(RemoteProtocolError, match="bad JSON of 13 characters"):
        parse_json("{0:1,1:2,2:3}", limits=limits)
    assert parse_json("{0:1,1:2,2:3}") == {"0": 1, "1": 2, "2": 3}
    with pytest.raises(RemoteProtocolError, match="more than 2 values"):
        parse_json("[1,2,3,4]", limits=evolve(limits, values_max=2))


@pytest.mark.parametrize(("part", "what"), [("[]", "600000 objects and arrays"), ("1", "1200000 values")])
def test_an_answer_of_any_reader_has_limits(part, what):
    body = f"[{','.join([part] * 1_300_000)}]".encode()
    with pytest.raises(RemoteProtocolError, match=what):
        parse_json(body)
    assert parse_json(f"[{','.join([part] * 500_000)}]")
