"""Answers of brokers and files of users made wrong: errors of the expected kind, or findings."""

from typing import Any

import pytest
from attrs import evolve

from tests.doctor.cases import pair
from tests.levels import by_level
from tests.mutations.mutate import mutants
from tests.remoting.recorded import answers
from trioha.doctor.collector import clock_reading
from trioha.doctor.conf_files import conf_facts
from trioha.doctor.diagnosis import diagnose
from trioha.doctor.facts import Facts
from trioha.doctor.tables import TABLE_REQUESTS, Tables, parse_table, with_table
from trioha.errors import RemoteProtocolError
from trioha.remoting.broker_config import parse_broker_config
from trioha.remoting.codes import RequestCode
from trioha.remoting.ha_runtime_info import decode_ha_status
from trioha.remoting.runtime_table import (
    natural_of,
    parse_runtime_info,
    runtime_info_of,
    uptime_s_of,
)

pytestmark = pytest.mark.sized

REAL = answers("remoting-5.3.3/070-probe--master")
NUMBER = by_level(200, 1200, 12_000)
CONFIGS = (
    b"brokerName=broker-a\nbrokerClusterName=c\nbrokerId=0\nbrokerRole=SYNC_MASTER\nslaveTimeout=3000 \n",
    b"haListenPort=10912\nbrokerIP1=127.0.0.1\nmappedFileSizeCommitLog=65536\nhaTransferBatchSize=1\n",
    b"brokerRole=SLAVE\nbrokerId=1\nhaMasterAddress=10.0.0.1:10912\ntrioha.haRole=observer\n",
)


@pytest.mark.parametrize("name", TABLE_REQUESTS)
def test_tables_that_are_wrong_are_protocol_errors_or_findings(name):
    valid = [bytes(REAL[code].body) for code in TABLE_REQUESTS.values()]
    for body in mutants(0, valid, NUMBER):
        try:
            tables = with_table(Tables(), name, parse_table(name, body))
        except RemoteProtocolError:
            continue
        for both in (pair().with_master(tables=tables), pair("5.5.0").with_slave(tables=tables)):
            assert both.findings() is not None


def test_settings_and_figures_that_are_wrong_are_findings():
    valid = [
        bytes(REAL[code].body)
        for code in (RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO)
    ]
    for body in mutants(0, valid, NUMBER // 4):
        changes: dict[str, Any] = {"config": parse_broker_config(body)}
        both = pair("5.5.0")
        try:
            table = parse_runtime_info(body)
        except RemoteProtocolError:
            table = {}
        booted_ms, uptime_s = natural_of(table, "bootTimestamp"), uptime_s_of(table)
        if booted_ms is not None and uptime_s is not None:
            changes["clock"] = clock_reading(
                booted_ms=booted_ms, uptime_s=uptime_s, sent_s=1.0, received_s=2.0
            )
        assert both.master.status is not None
        status = evolve(both.master.status, table=runtime_info_of(table))
        for changed in (
            both.with_master(**changes, status=status),
            both.with_slave(**changes),
            both.with_slave(status=None, error="gone"),
        ):
            assert changed.findings() is not None


def test_statuses_that_are_wrong_are_protocol_errors_or_findings():
    for body in mutants(0, [bytes(REAL[RequestCode.GET_BROKER_HA_STATUS].body)], NUMBER):
        try:
            status = decode_ha_status(body)
        except RemoteProtocolError:
            continue
        for both in (pair().with_master(status=status), pair("5.5.0").with_slave(status=status)):
            assert both.findings() is not None


@pytest.mark.parametrize("version", [None, "4.9.7", "5.5.0", "trioha"])
def test_files_that_are_wrong_are_findings(version):
    for data in mutants(0, CONFIGS, NUMBER // 4):
        facts = conf_facts(data, path="x.conf")
        assert diagnose(Facts(files=(facts,), assumed_version=version)) is not None
        assert pair("4.9.7").findings(facts) is not None
