"""Signatures of requests: those of real clients, both variants, and what a signature protects."""

import pytest
from attrs import evolve

from tests.remoting.recorded import STREAMS, commands
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import SerializeType, request
from trioha.remoting.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    Credentials,
    is_signed_with,
    signed,
)

SECRET = "12345678"
KEYS = Credentials("rocketmq2", SECRET)
SIGNED = [
    (path.parent.name, path.stem, command)
    for path in STREAMS
    if path.name.endswith(".c2s.bin")
    for command in commands(path)
    if not command.is_response and SIGNATURE in command.ext_fields
]


def test_the_signatures_of_recorded_requests_are_valid():
    assert {folder for folder, _, _ in SIGNED} == {"remoting-4.9.7", "remoting-5.3.3"}
    invalid = [(name, command.opaque) for _, name, command in SIGNED if not is_signed_with(command, SECRET)]
    # Of the probes for refusals, one has a wrong signature.
    assert invalid == [("113-acl--master.c2s", 104)]


def test_signing_a_recorded_request_gives_the_signature_of_the_real_client():
    for _, name, command in SIGNED:
        if "acl--" in name or command.ext_fields[ACCESS_KEY] != KEYS.access_key:
            continue
        unsigned = {
            key: value for key, value in command.ext_fields.items() if key not in {ACCESS_KEY, SIGNATURE}
        }
        again = signed(evolve(command, ext_fields=unsigned), KEYS)
        assert dict(again.ext_fields) == dict(command.ext_fields)


def test_both_variants_of_a_query_by_key_are_valid():
    fields = {"topic": "T", "key": "k", "_UNIQUE_KEY_QUERY": "false"}
    of_client = signed(request(12, ext_fields=fields), KEYS)
    without = signed(request(12, ext_fields={"topic": "T", "key": "k"}), KEYS)
    of_broker = evolve(without, ext_fields={**without.ext_fields, "_UNIQUE_KEY_QUERY": "false"})
    assert of_client.ext_fields[SIGNATURE] != of_broker.ext_fields[SIGNATURE]
    assert is_signed_with(of_client, SECRET)
    assert is_signed_with(of_broker, SECRET)


@pytest.mark.parametrize("serialize_type", SerializeType)
def test_a_signature_survives_the_wire(serialize_type):
    fields = {
        "b": "Thema-ü",
        "a": "g\ud800",
        "empty": "",
        "k": "false",
        "Z": "1",
        "é": "2",
        "\U0001f600": "3",
    }
    asked = request(310, ext_fields=fields, body=b"body" * 50_000, serialize_type=serialize_type)
    decoder = FrameDecoder()
    decoder.feed(encode(signed(asked, Credentials("name-ü", "secret-ü", "token"))))
    received = decoder.next_command()
    assert received.ext_fields[SECURITY_TOKEN] == "token"
    assert is_signed_with(received, "secret-ü")
    assert not is_signed_with(received, "secret-u")


def _changed(name, value):
    command = signed(request(310, ext_fields={"b": "T", "e": "1"}, body=b"body"), KEYS)
    fields = dict(command.ext_fields)
    if value is None:
        del fields[name]
    else:
        fields[name] = value
    return evolve(command, ext_fields=fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("b", "U"),
        ("e", "2"),
        ("new", "x"),
        ("b", None),
        (ACCESS_KEY, "rocketmq3"),
        (SIGNATURE, None),
        (SIGNATURE, ""),
        (SIGNATURE, "ü\ud800"),
        (SIGNATURE, "A" * 100_000),
        ("_UNIQUE_KEY_QUERY", "x" * 10),
    ],
)
def test_a_changed_request_has_no_valid_signature(name, value):
    # The broker's variant does not protect the one field that it leaves out.
    is_unprotected = name == "_UNIQUE_KEY_QUERY"
    assert is_signed_with(_changed(name, value), SECRET) is is_unprotected


def test_a_changed_body_has_no_valid_signature():
    command = signed(request(310, ext_fields={"b": "T"}, body=b"body"), KEYS)
    assert is_signed_with(evolve(command, body=memoryview(b"body")), SECRET)
    assert not is_signed_with(evolve(command, body=b"bodY"), SECRET)
    assert not is_signed_with(evolve(command, body=b""), SECRET)


def test_secrets_are_not_shown():
    assert SECRET not in repr(KEYS)
    assert "token" not in repr(Credentials("a", "b", "token"))
