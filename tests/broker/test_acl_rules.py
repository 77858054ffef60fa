"""plain_acl.yml: its rules, patterns of addresses, and files that cannot be used."""

from pathlib import Path

import pytest

from trioha.auth.model import Resource
from trioha.broker.acl_rules import Permission, parse_acl
from trioha.broker.address_pattern import AddressPattern
from trioha.errors import ConfigError

FILE = Path("plain_acl.yml")
DISTRIBUTION = b"""\
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""
"""As in RocketMQ's documentation."""


def topic(name):
    return Resource.of_topic(name)


def group(name):
    return Resource.of_group(name)


def test_the_file_of_a_distribution_gives_its_accounts():
    rules = parse_acl(DISTRIBUTION, file=FILE)
    assert [pattern.matches("10.10.103.7") for pattern in rules.white_addresses] == [True, False]
    user, admin = rules.accounts["RocketMQ"], rules.accounts["rocketmq2"]
    assert (user.secret_key, user.is_admin, admin.is_admin) == ("12345678", False, True)
    both = (Permission.PUB, Permission.SUB)
    allowed = {
        str(resource): [permission.name for permission in both if user.may(permission, resource)]
        for resource in (
            topic("topicA"), topic("topicB"), topic("topicC"), topic("other"),
            group("groupA"), group("groupB"), group("groupC"), group("other"), topic("%RETRY%groupA"),
        )
    }  # fmt: skip
    assert allowed == {
        "Topic:topicA": [],
        "Topic:topicB": ["PUB", "SUB"],
        "Topic:topicC": ["SUB"],
        "Topic:other": [],
        "Group:groupA": [],
        "Group:groupB": ["PUB", "SUB"],
        "Group:groupC": ["SUB"],
        "Group:other": ["SUB"],
    }
    assert admin.may(Permission.PUB, topic("any"))
    assert admin.white_addresses.matches("192.168.1.255")
    assert not admin.white_addresses.matches("192.168.2.1")
    assert "12345678" not in repr(rules)


def test_an_admin_with_a_list_needs_permissions_for_the_rest():
    rules = parse_acl(
        b"accounts: [{accessKey: the-admin, secretKey: 12345678, admin: true, topicPerms: [T=PUB]}]",
        file=FILE,
    )
    admin = rules.accounts["the-admin"]
    assert admin.may(Permission.PUB, topic("T"))
    assert not admin.may(Permission.SUB, topic("T"))
    assert not admin.may(Permission.PUB, topic("U"))


def account(text):
    return b"accounts:\n- accessKey: account-1\n  secretKey: top-secret\n" + text.encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "plain_acl.yml: has no rules"),
        (b"- a\n", "plain_acl.yml:1: the file is not a mapping of keys"),
        (b"account: []\n", "plain_acl.yml:1: account: is not a key of the file"),
        (b"accounts: 7\n", "plain_acl.yml:1: accounts: is not a list"),
        (b"accounts: [7]\n", "plain_acl.yml:1: an account is not a mapping of keys"),
        (b"accounts: [{secretKey: 12345678}]\n", "accessKey: is missing"),
        (b"accounts: [{accessKey: account-1}]\n", "secretKey: is missing"),
        (b"accounts: [{accessKey: short, secretKey: 12345678}]\n", "accessKey: has fewer than 7 characters"),
        (
            b"accounts: [{accessKey: account-1, secretKey: 123456}]\n",
            "secretKey: has fewer than 7 characters",
        ),
        (account("  admin: maybe\n"), "plain_acl.yml:4: admin: is neither true nor false"),
        (
            account("  defaultTopicPerm: PUBB\n"),
            "plain_acl.yml:4: defaultTopicPerm: 'PUBB' is not a permission",
        ),
        (
            account("  topicPerms:\n  - T=PUB\n  - U\n"),
            "plain_acl.yml:6: topicPerms: has an entry that is not",
        ),
        (account("  topicPerms:\n  - T=pub\n"), "plain_acl.yml:5: topicPerms: 'pub' is not a permission"),
        (account("  groupPerms: [[x]]\n"), "plain_acl.yml:4: groupPerms: has an entry that is not text"),
        (account("  whiteRemoteAddress: 1.2.3\n"), "whiteRemoteAddress: '1.2.3' is no address"),
        (account("  topicPerm: []\n"), "plain_acl.yml:4: topicPerm: is not a key of an account"),
        (account("- accessKey: account-1\n  secretKey: 12345678\n"), "'account-1' is given twice"),
        (b"globalWhiteRemoteAddresses: [10.0.0.300]\n", "has a part that is not 0 to"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_without_secrets(data, said):
    with pytest.raises(ConfigError) as refused:
        parse_acl(data, file=FILE)
    text = str(refused.value)
    assert said in text
    assert "\n" not in text
    assert "top-secret" not in text


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["10.0.0.1", "fe80::1"], []),
        ("*.*.*.*", ["10.0.0.1", "::ffff:10.0.0.1"], ["fe80::1"]),
        ("10.0.0.7", ["10.0.0.7"], ["10.0.0.8", "fe80::7"]),
        ("10.0.0.7, 10.0.0.9", ["10.0.0.7", "10.0.0.9"], ["10.0.0.8"]),
        ("10.0.0.{7,9}", ["10.0.0.7", "10.0.0.9"], ["10.0.0.8"]),
        ("10.0.0.{7,9},10.1.*.*", ["10.0.0.7", "10.1.2.3"], ["10.0.0.8"]),
        ("10.0.1-3.*", ["10.0.1.0", "10.0.3.255"], ["10.0.0.1", "10.0.4.0"]),
        ("fe80::7", ["fe80::7", "fe80:0:0:0:0:0:0:7", "fe80::7%eth0"], ["fe80::8"]),
        ("::1", ["::1"], ["::2", "127.0.0.1"]),
        ("fe80:0:0:0:0:0:0:1-ff", ["fe80::ab"], ["fe80::100"]),
        ("fe80::{1,a}", ["fe80::a"], ["fe80::b"]),
        ("*:*:*:*:*:*:*:*", ["::1", "fe80::1"], ["10.0.0.1"]),
        ("", [], ["10.0.0.1"]),
        (" , ", [], ["10.0.0.1"]),
    ],
)
def test_a_pattern_matches_addresses(pattern, inside, outside):
    parsed = AddressPattern.parse(pattern)
    assert [host for host in inside if not parsed.matches(host)] == []
    assert [host for host in outside if parsed.matches(host)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "10.0.0", "10.0.0.0.0", "10.0.0.256", "10.0.0.-1", "10.0.0.9-1", "10.0.0.{1", "10.0.0.{}",
        "host.name", "10.0.0.\u0661", "10.0.0.0/24", "1::2::3", "fe80::12345", ":", "10.0.0.1-",
        "a" * 5000, "1:2:3",
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(ValueError, match=r"pattern|part|range"):
        AddressPattern.parse(pattern)
