"""The stored forms: our file, and the values of RocketMQ's stores."""

import json

import pytest
from hypothesis import given

from tests.auth.strategies import tables
from trioha.auth.bodies import acl_json, body_of, tables_of_answers, user_json
from trioha.auth.stored import decode_file, decode_value, encode_file, encode_value, tables_of, values_of
from trioha.auth.tables import AuthTables
from trioha.errors import RemoteProtocolError

USER = b'{"password":"alicesecret","subjectType":1,"userStatus":1,"userType":2,"username":"alice"}'
ACL = (
    b'{"policies":[{"entries":[{"actions":[3,4],"decision":1,"environment":{"sourceIps":["127.0.0.0/8"]},'
    b'"resource":{"resourceName":"TopicTimer","resourcePattern":2,"resourceType":4}}],"policyType":1}],'
    b'"subject":{"subjectType":1,"username":"alice"}}'
)
"""Values of the stores of a real 5.5.0 broker."""


def test_values_of_a_real_broker_are_read_and_written_byte_by_byte():
    found = tables_of({"alice": decode_value(USER)}, {"User:alice": decode_value(ACL)})
    users, acls = values_of(found)
    assert encode_value(users["alice"]) == USER
    assert encode_value(acls["User:alice"]) == ACL


@given(tables())
def test_a_file_has_all_of_its_tables(found):
    assert decode_file(encode_file(found)) == found


@given(tables())
def test_answers_have_all_tables_of_a_broker(found):
    users = body_of([user_json(user) for user in found.users_with(None)])
    acls = body_of([acl_json(acl) for acl in found.acls_with(None, None)])
    assert tables_of_answers(users, acls) == found


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("version"),
        lambda value: value.update(version=2),
        lambda value: value.update(users=[]),
        lambda value: value.pop("acls"),
        lambda value: value["users"]["alice"].update(password=7),
        lambda value: value["users"]["alice"].update(userType=3),
        lambda value: value["users"]["alice"].update(userStatus="enable"),
        lambda value: value["users"].update({"": value["users"]["alice"]}),
        lambda value: value["acls"].update({"Role:alice": value["acls"]["User:alice"]}),
        lambda value: value["acls"]["User:alice"]["policies"][0].update(policyType=True),
        lambda value: value["acls"]["User:alice"]["policies"][0]["entries"][0].update(actions=[0]),
        lambda value: value["acls"]["User:alice"]["policies"][0]["entries"][0].update(actions=7),
        lambda value: value["acls"]["User:alice"]["policies"][0]["entries"][0].update(decision=None),
        lambda value: value["acls"]["User:alice"]["policies"][0]["entries"][0].pop("resource"),
        lambda value: value["acls"]["User:alice"]["policies"][0]["entries"][0].update(
            environment={"sourceIps": ["nowhere"]}
        ),
    ],
)
def test_a_damaged_file_is_refused_without_a_secret_in_the_reason(change):
    value = json.loads(
        encode_file(tables_of({"alice": decode_value(USER)}, {"User:alice": decode_value(ACL)}))
    )
    change(value)
    with pytest.raises(ValueError, match=r"^[a-z]") as refused:
        decode_file(json.dumps(value).encode())
    assert "alicesecret" not in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"password":"alicesecret', b"\xff", b"[" * 100_000])
def test_a_torn_file_is_refused_without_a_secret_in_the_reason(data):
    with pytest.raises(ValueError, match=r"^the file is not (JSON|an object)$"):
        decode_file(data)


@pytest.mark.parametrize(
    ("users", "acls"),
    [
        (b"{}", b""),
        (b"[7]", b""),
        (b'[{"username":"a"}]', b""),
        (b'[{"username":"a","password":"p","userType":"Other"}]', b""),
        (b'[{"username":7,"password":"p","userType":"Super"}]', b""),
        (b"[" + b"{}," * 20_000 + b"{}]", b""),
        (b"", b'[{"policies":[]}]'),
        (b"", b'[{"subject":"User:a","policies":{}}]'),
        (b"", b'[{"subject":"User:a","policies":[{"entries":[{"resource":"x"}]}]}]'),
        (b'[{"username":"a","password":"alicesecret', b""),
    ],
)
def test_answers_that_make_no_sense_are_refused_without_a_secret_in_the_reason(users, acls):
    with pytest.raises(RemoteProtocolError) as refused:
        tables_of_answers(users, acls)
    assert "alicesecret" not in str(refused.value)


def test_missing_bodies_are_empty_tables():
    assert tables_of_answers(b"", b"") == AuthTables()


def test_no_secret_is_in_a_text_of_users():
    found = tables_of({"alice": decode_value(USER)}, {})
    assert "alicesecret" not in repr(found)
    assert "alicesecret" not in str(found.users["alice"])
