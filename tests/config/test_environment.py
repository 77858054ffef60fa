"""Each key is a variable of the environment, too."""

from __future__ import annotations

import os

import pytest

from tests.config.loading import load, refusals
from tests.config.test_broker import SETTINGS as ROWS
from trioha.config.broker import SETTINGS, BrokerConfig, find_setting
from trioha.config.environment import KEYS, variable_of
from trioha.config.loading import check_config, load_config
from trioha.config.properties_file import PropertiesDocument
from trioha.config.update import ConfigFile, RefusedChange, plan_change


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in os.environ:
        if name.startswith("TRIOHA_") or name in {"NAMESRV_ADDR", "ROCKETMQ_HOME"}:
            monkeypatch.delenv(name)


def test_each_key_has_a_variable_of_its_own():
    assert len(KEYS) == len(SETTINGS)
    for key, variable in (
        ("listenPort", "TRIOHA_LISTEN_PORT"),
        ("trioha.metricsPort", "TRIOHA_METRICS_PORT"),
        ("brokerIP1", "TRIOHA_BROKER_IP1"),
        ("tls.server.need.client.auth", "TRIOHA_TLS_SERVER_NEED_CLIENT_AUTH"),
    ):
        assert variable_of(key) == variable
        assert KEYS[variable] == key


def test_variables_give_what_the_lines_of_a_full_file_give():
    file = "\n  ".join(line for line, _, _ in ROWS.values())
    environment, others = {}, []
    for entry in PropertiesDocument.parse(file.encode()).entries:
        _, setting = find_setting(entry.key)
        if entry.key == setting.key:
            environment[variable_of(entry.key)] = entry.value
        else:
            # Older names have no variable.
            others.append(f"{entry.key}={entry.value}")
    loaded = check_config("\n".join(others).encode(), file=None, environment=environment)
    assert loaded.config == BrokerConfig(**{name: value for name, (_, _, value) in ROWS.items()})
    assert loaded.warnings == ()


def test_a_variable_replaces_the_file_and_an_override_replaces_both(conf, monkeypatch):
    monkeypatch.setenv("TRIOHA_SLAVE_TIMEOUT", " 2 ")
    monkeypatch.setenv("TRIOHA_HA_MAX_GAP_NOT_IN_SYNC", "7")
    file = "slaveTimeout=1\nhaSlaveFallbehindMax=5\n"
    assert load(conf, file).config.slave_timeout == 2
    assert load(conf, file).config.ha_max_gap_not_in_sync == 7
    assert load(conf, file, "slaveTimeout=3").config.slave_timeout == 3


def test_a_variable_replaces_those_of_rocketmq_and_the_file_of_tls(conf, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", "of-rocketmq:1")
    monkeypatch.setenv("TRIOHA_NAMESRV_ADDR", "own:1")
    monkeypatch.setenv("TRIOHA_TLS_SERVER_MODE", "disabled")
    own = conf.with_name("tls.properties")
    own.write_text("tls.server.mode=enforcing\n")
    monkeypatch.setenv("TRIOHA_TLS_CONFIG_FILE", str(own))
    config = load(conf, "").config
    assert config.namesrv_addr == ("own:1",)
    assert config.tls_server_mode.value == "disabled"


def test_an_empty_variable_is_none(conf, monkeypatch):
    monkeypatch.setenv("TRIOHA_LISTEN_PORT", "")
    assert load(conf, "listenPort=5").config.listen_port == 5


def test_a_problem_names_the_variable(conf, monkeypatch):
    monkeypatch.setenv("TRIOHA_LISTEN_PORT", "abc")
    monkeypatch.setenv("TRIOHA_METRICS_PORT", "10912")
    assert refusals(conf, "slaveTimeout=0") == [
        "broker.conf:1: slaveTimeout: 0 is out of range; give 1 to 2147483647",
        "$TRIOHA_LISTEN_PORT: 'abc' is not a whole number; give 0 to 65535",
    ]
    monkeypatch.setenv("TRIOHA_LISTEN_PORT", "10911")
    assert refusals(conf, "") == ["$TRIOHA_METRICS_PORT: is 10912, and so is haListenPort; give another port"]


def test_a_misspelled_variable_is_refused_and_those_of_others_are_not(conf, monkeypatch):
    monkeypatch.setenv("TRIOHA_BROKER_ROL", "SYNC_MASTER")
    assert refusals(conf, "") == [
        "$TRIOHA_BROKER_ROL: is the variable of no key; did you mean TRIOHA_BROKER_ROLE?"
    ]
    monkeypatch.delenv("TRIOHA_BROKER_ROL")
    # Of services of Kubernetes, and of trioha itself.
    for name in ("PORT", "PORT_10911_TCP", "PORT_10911_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT_REMOTING"):
        monkeypatch.setenv(f"TRIOHA_{name}", "tcp://10.0.0.1:10911")
    monkeypatch.setenv("TRIOHA_PURE", "1")
    assert load(conf, "").warnings == ()
    monkeypatch.setenv("TRIOHA_FAVOURITE_COLOUR", "blue")
    assert load(conf, "").warnings == ("$TRIOHA_FAVOURITE_COLOUR: is the variable of no key",)


def test_without_a_file_all_settings_are_of_the_environment_and_overrides(monkeypatch):
    monkeypatch.setenv("TRIOHA_LISTEN_PORT", "20000")
    config = load_config(None, ["brokerName=b"]).config
    assert (config.listen_port, config.broker_name) == (20000, "b")
    assert load_config(None, ["autoDeleteUnusedStats=true"]).warnings == (
        "settings: known to RocketMQ, not used by trioha yet: -p autoDeleteUnusedStats",
    )


def test_a_key_of_the_environment_cannot_be_changed_while_the_node_runs(tmp_path, monkeypatch):
    path = tmp_path / "broker.conf"
    path.write_text("fileReservedTime=72\n")
    monkeypatch.setenv("TRIOHA_FILE_RESERVED_TIME", "24")
    config = load_config(path).config
    with pytest.raises(RefusedChange) as refused:
        plan_change(
            ConfigFile(path),
            config,
            {"fileReservedTime": "48"},
            at_run_time=frozenset(("file_reserved_time",)),
        )
    assert str(refused.value) == (
        "fileReservedTime was given as $TRIOHA_FILE_RESERVED_TIME, "
        "which replaces the file's value at every start"
    )
