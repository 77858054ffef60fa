"""The runtime table and the configuration of a broker."""

import pytest

from tests.remoting.recorded import answers
from trioha.broker_status import BrokerRuntimeInfo, BrokerSettings
from trioha.errors import RemoteProtocolError
from trioha.remoting.broker_config import parse_broker_config
from trioha.remoting.codes import RequestCode
from trioha.remoting.runtime_table import (
    parse_runtime_info,
    runtime_info_of,
    settings_of,
)


def test_recorded_runtime_info_and_configuration_are_read():
    recorded = answers("remoting-5.3.3/070-probe--master")
    table = parse_runtime_info(recorded[RequestCode.GET_BROKER_RUNTIME_INFO].body)
    assert table["commitLogMaxOffset"] == "14001"
    config = parse_broker_config(recorded[RequestCode.GET_BROKER_CONFIG].body)
    assert config["brokerRole"] == "SYNC_MASTER"
    with pytest.raises(RemoteProtocolError, match="no table"):
        parse_runtime_info(b"{}")


def test_values_that_make_no_sense_are_none_and_the_others_are_read():
    wrong = ("", "-1", "nan", "1e999", "9" * 40, "no number", "Total : x GiB, Free : 1 GiB.")
    for text in wrong:
        table = runtime_info_of(
            {
                "bootTimestamp": "12",
                "commitLogDirCapacity": text,
                "commitLogDiskRatio": text,
                "earliestMessageTimeStamp": text,
                "putTps": text,
                "remainHowManyDataToFlush": text,
            }
        )
        assert table == BrokerRuntimeInfo(booted_ms=12)
        settings = settings_of({"slaveTimeout": text, "haSlaveFallbehindMax": "5"})
        assert settings == BrokerSettings(gap_bytes_max=5)
