"""Versions, and the keys that each version ignores, compared with what real brokers report."""

import pytest

from tests.remoting.recorded import answers
from trioha.config.rocketmq_keys import KEYS_OF_4_9, ROCKETMQ_KEYS, SINCE_5_4, SINCE_5_5
from trioha.doctor.versions import BrokerVersion
from trioha.remoting.broker_config import parse_broker_config
from trioha.remoting.codes import RequestCode

SESSIONS = {"4.9.7": "remoting-4.9.7/098-probe--master", "5.3.3": "remoting-5.3.3/070-probe--master"}


def reported_keys(version: str) -> set[str]:
    """The keys that a real broker has: its answer to GET_BROKER_CONFIG."""
    return set(parse_broker_config(answers(SESSIONS[version])[RequestCode.GET_BROKER_CONFIG].body))


@pytest.mark.parametrize("version", SESSIONS)
def test_no_key_that_a_real_broker_reports_is_ignored_by_its_version(version):
    assert BrokerVersion.of(version).unused_keys(reported_keys(version)) == {}


def test_keys_that_only_a_newer_or_older_broker_reports_are_ignored():
    old, new = reported_keys("4.9.7"), reported_keys("5.3.3")
    assert BrokerVersion.of("4.9.7").unused_keys(new).keys() == new - old
    assert BrokerVersion.of("5.3.3").unused_keys(old).keys() == old - new


def test_keys_without_a_default_are_not_ignored():
    # Not in an answer before they are set.
    keys = {"haMasterAddress", "namesrvAddr", "brokerConfigPath", "tls.server.mode"}
    assert all(not BrokerVersion.of(version).unused_keys(keys) for version in ("4.9.7", "5.3.3", "5.5.0"))


def test_new_keys_have_their_version():
    assert BrokerVersion.of("5.3.3").unused_keys(SINCE_5_4 | SINCE_5_5).keys() == SINCE_5_4 | SINCE_5_5
    assert BrokerVersion.of("5.4.0").unused_keys(SINCE_5_4 | SINCE_5_5).keys() == SINCE_5_5
    assert BrokerVersion.of("5.5.0").unused_keys(SINCE_5_4 | SINCE_5_5) == {}
    assert KEYS_OF_4_9 | SINCE_5_4 | SINCE_5_5 <= ROCKETMQ_KEYS
    assert KEYS_OF_4_9.isdisjoint(SINCE_5_4 | SINCE_5_5)
    assert SINCE_5_4.isdisjoint(SINCE_5_5)


def test_trioha_and_unknown_versions_ignore_no_key():
    for version in ("trioha-0.1.0", "", None, "something"):
        assert BrokerVersion.of(version).unused_keys(ROCKETMQ_KEYS) == {}


@pytest.mark.parametrize(
    ("text", "numbers", "shown"),
    [
        ("V5_3_3", (5, 3, 3), "RocketMQ 5.3.3"),
        ("4.9.7", (4, 9, 7), "RocketMQ 4.9.7"),
        ("5.5", (5, 5), "RocketMQ 5.5"),
        ("V5_4_0_SNAPSHOT", (5, 4, 0), "RocketMQ 5.4.0"),
        ("trioha-0.1.0", (), "trioha-0.1.0"),
        ("HIGHER_VERSION", (), "HIGHER_VERSION"),
        ("", (), "an unknown version"),
    ],
)
def test_versions_are_read(text, numbers, shown):
    version = BrokerVersion.of(text)
    assert (version.numbers, version.shown) == (numbers, shown)
    assert version.is_trioha == text.startswith("trioha")
