"""Settings of a name server."""

from pathlib import Path

import pytest

from trioha.errors import ConfigError
from trioha.namesrv.settings import load_settings, settings_text


def test_a_file_of_rocketmq_is_read_and_overridden(tmp_path):
    conf = tmp_path / "namesrv.conf"
    conf.write_text(
        "listenPort = 1234\nkvConfigPath=/data/kv.json\nserverWorkerThreads=8\nclusterTest=false\n"
    )
    loaded = load_settings(conf, ["listenPort=0", "orderMessageEnable=TRUE"])
    assert loaded.settings.listen_port == 0
    assert loaded.settings.kv_config_path == Path("/data/kv.json")
    assert loaded.settings.order_message_enable
    assert loaded.warnings == ("known to RocketMQ, not used by trioha: serverWorkerThreads, clusterTest",)
    text = settings_text(loaded.settings).decode()
    assert "kvConfigPath=/data/kv.json\nlistenPort=0\norderMessageEnable=true\n" in text


def test_defaults_are_rocketmqs():
    settings = load_settings(None).settings
    assert (settings.listen_port, settings.bind_address) == (9876, "0.0.0.0")
    assert settings.kv_config_path == Path.home() / "namesrv" / "kvConfig.json"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("listenPort", "not of the form key=value"),
        ("listenPort=70000", "out of range"),
        ("listenport=1", "not a key of RocketMQ's name server"),
        ("orderMessageEnable=yes", "neither true nor false"),
    ],
)
def test_settings_that_cannot_be_are_refused(override, reason):
    with pytest.raises(ConfigError, match=reason):
        load_settings(None, [override])


def test_a_file_that_is_not_there_or_damaged_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.conf: cannot be read"):
        load_settings(tmp_path / "missing.conf")
    damaged = tmp_path / "damaged.conf"
    damaged.write_text("kvConfigPath=\\u12")
    with pytest.raises(ConfigError, match=r"damaged\.conf:1: kvConfigPath"):
        load_settings(damaged)
