"""Addresses in command lines and settings."""

import pytest

from trioha.errors import ConfigError
from trioha.remoting.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:10911", Address("127.0.0.1", 10911)),
        ("broker-a.example:1", Address("broker-a.example", 1)),
        ("[::1]:65535", Address("::1", 65535)),
        (" localhost:10911\n", Address("localhost", 10911)),
    ],
)
def test_an_address_is_parsed_and_formatted_alike(text, address):
    assert parse_address(text) == address
    assert str(address) == text.strip()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("localhost", "it has no port"),
        ("", "it has no port"),
        ("::1:10911", "stands in brackets"),
        (":10911", "'' is not a host"),
        ("[]:10911", "'' is not a host"),
        ("http://localhost:10911", "stands in brackets"),
        ("a b:10911", "is not a host"),
        ("localhost:", "'' is not a port"),
        ("localhost:0", "'0' is not a port"),
        ("localhost:65536", "is not a port"),
        ("localhost:" + "9" * 5000, "is not a port"),
        ("localhost:²", "is not a port"),
        ("localhost:-1", "is not a port"),
    ],
)
def test_an_invalid_address_is_refused_in_one_line(text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_address(text)
    assert "\n" not in str(caught.value)
    assert "HOST:PORT" in str(caught.value)
