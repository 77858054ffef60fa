"""The monitor's configuration file."""

import pytest

from trioha.errors import ConfigError
from trioha_monitor.config import MonitorConfig, Thresholds, read_config


def config_of(tmp_path, text):
    path = tmp_path / "monitor.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_file_has_addresses_name_servers_and_thresholds(tmp_path):
    path = config_of(
        tmp_path,
        """
        [monitor]
        addresses = ["10.0.0.5:10911", "[::1]:10911"]
        namesrv = ["10.0.0.1:9876"]
        [monitor.thresholds]
        group-lag-s = 30
        controller-silence-s = 7.5
        [others]
        are = "not read"
        """,
    )
    assert read_config(path) == MonitorConfig(
        ("10.0.0.5:10911", "[::1]:10911"),
        ("10.0.0.1:9876",),
        Thresholds(group_lag_s=30.0, controller_silence_s=7.5),
    )
    assert read_config(config_of(tmp_path, "[monitor]")) == MonitorConfig()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no table [monitor]; write [monitor] above its keys"),
        ("monitor = 3", "monitor: is not a table; write [monitor]"),
        (b"\xff", "is not UTF-8; save it as UTF-8"),
        ("[monitor", "is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        (
            "[monitor]\nadresses = []",
            "monitor.adresses: is unknown; use addresses, namesrv, thresholds",
        ),
        (
            "[monitor]\naddresses = 'a:1'",
            'monitor.addresses: is not a list of addresses; write addresses = ["10.0.0.5:10911"]',
        ),
        (
            "[monitor.thresholds]\ngroup_lag = 3",
            (
                "monitor.thresholds.group_lag: is unknown; use group-lag-s, group-age-s, metadata-age-s, "
                "controller-silence-s"
            ),
        ),
        (
            "[monitor.thresholds]\ngroup-lag-s = true",
            "monitor.thresholds.group-lag-s: True is no time; write group-lag-s = 30",
        ),
        (
            "[monitor.thresholds]\ngroup-lag-s = -1",
            "monitor.thresholds.group-lag-s: -1 is no time; write group-lag-s = 30",
        ),
        (
            "[monitor.thresholds]\ngroup-lag-s = inf",
            "monitor.thresholds.group-lag-s: inf is no time; write group-lag-s = 30",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_place_reason_and_remedy(tmp_path, text, says):
    path = config_of(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read_config(path)
    assert str(refused.value) == f"{path}: {says}"


def test_an_invalid_address_of_a_file_is_refused_with_its_key(tmp_path):
    path = config_of(tmp_path, "[monitor]\nnamesrv = ['localhost']")
    with pytest.raises(ConfigError) as refused:
        read_config(path)
    assert str(refused.value).startswith(f"{path}: monitor.namesrv: 'localhost' is not an address")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"gone.toml: cannot be read: No such file or directory$"):
        read_config(tmp_path / "gone.toml")
