"""Metrics of node processes: what a pair serves, hostile peers at the port, slaves that come and go."""

import os
import random
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.metrics.pages import OF_PROMETHEUS, family_name, uses
from tests.metrics.scraping import (
    documented,
    documented_of_nodes,
    families_of,
    parsed,
    query_name,
    scrape,
    value,
    values_of,
)
from tests.monitor.real_nodes import config_of
from tests.node.client import Client, endpoint, strangers
from tests.node_process import TriohaNode, run_node, run_trioha
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT
from tests.waiting import wait_until
from trioha.ha.frames import encode_report
from trioha.node.node import run_node as run_node_here
from trioha.node.store_tasks import close_store, open_store
from trioha.store.message_store import MessageStore

pytestmark = pytest.mark.process

NOT_HERE = {
    "trioha_acl_refusals_total": "a node with access control",
}
"""Series without samples on the pair of these tests, and what would have them."""
WITHIN_S = 60
"""For whatever a node or a command does, on a machine that is busy with other tests."""


@pytest.fixture
def start(start_node):
    return partial(start_node, **{"trioha.metricsPort": 0})


def metrics_of(node: TriohaNode) -> list[Any]:
    status, content_type, text = scrape(node.metrics_address)
    assert (status, content_type) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    return parsed(text)


def is_archiving(node: TriohaNode) -> bool:
    archive = node.status().archive
    return archive is not None and archive.state == "running"


def ask(address: str, raw: bytes) -> bytes:
    """All that the node answers to bytes, until it closes the connection."""
    answer = b""
    with socket.create_connection(endpoint(address), timeout=WITHIN_S) as stranger:
        # Reset: the node has closed the connection before it read everything. What it sent can be read still.
        with suppress(ConnectionError):
            stranger.sendall(raw)
            stranger.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := stranger.recv(1 << 16):
                answer += data
    return answer


def test_a_pair_serves_what_is_documented_and_what_dashboard_and_rules_name(start, tmp_path):
    master = start(
        "master",
        role="SYNC_MASTER",
        flushDiskType="SYNC_FLUSH",
        **{"trioha.archiveUrl": (tmp_path / "archive").as_uri(), "trioha.archiveInterval": 100},
    )
    slave = start("slave", slave_of=master)
    master.wait(connections=1, within_s=WITHIN_S)
    loaded = run_trioha(
        "load", "--broker", master.listen_address, "--topic", "orders", "--count", "50", "--consume"
    )
    assert loaded.exit_code == 0, loaded.stderr
    slave.wait(max_offset=master.max_offset, within_s=WITHIN_S)
    master.wait(ack_offset=master.max_offset, within_s=WITHIN_S)
    wait_until(lambda: is_archiving(master))
    with Client(master.listen_address) as client:
        # Just before the scrape: ack times are those of the last seconds.
        assert client.send(3) == {"PUT_OK": 3}
    served = {"master": metrics_of(master), "slave": metrics_of(slave)}
    listed = documented()
    for metrics in served.values():
        families = families_of(metrics)
        assert families.keys() == documented_of_nodes().keys()
        for name, family in families.items():
            assert family.kind == listed[name].kind
            assert family.labels <= listed[name].labels
    # What dashboard and rules select is there, with the values of labels that they name.
    everywhere = [series for metrics in served.values() for series in values_of(metrics)]
    kinds = {name: family.kind for name, family in listed.items()}
    missing = []
    for use in uses():
        for selector in use.expression.selectors:
            if selector.name == "up" or family_name(selector.name, kinds) in NOT_HERE:
                continue
            if selector.name.startswith(("trioha_control_", "trioha_archiver_")):
                # Of controller mode and of `trioha archive`: they have tests of their own.
                continue
            wanted = {
                (label, text)
                for label, (operator, text) in selector.matchers.items()
                if operator == "=" and label not in OF_PROMETHEUS
            }
            if not any(name == selector.name and wanted <= labels for name, labels in everywhere):
                missing.append(f"{use.place}: {selector.name} {sorted(wanted)}")
    assert missing == []

    of_master, of_slave = served["master"], served["slave"]
    end = master.max_offset
    assert value(of_master, "trioha_puts_total", status="PUT_OK") == 53
    assert value(of_master, "trioha_topic_put_messages_total", topic="orders") == 50
    assert value(of_master, "trioha_pull_messages_total") == 50
    assert value(of_master, "trioha_log_end_offset_bytes") == end
    assert value(of_slave, "trioha_log_end_offset_bytes") == end
    assert value(of_master, "trioha_slaves_in_sync") == value(of_master, "trioha_slaves_needed") == 1
    assert value(of_master, "trioha_flush_duration_seconds_count") >= 1
    assert value(of_slave, "trioha_master_connected") == 1
    assert value(of_slave, "trioha_master_reported_offset_bytes") == end
    by_stage = {
        dict(labels)["stage"]: lag
        for (name, labels), lag in values_of(of_master).items()
        if name == "trioha_slave_lag_bytes"
    }
    assert by_stage == {"sent": 0, "acknowledged": 0}
    # The same in the older format.
    _, content_type, text = scrape(master.metrics_address, accept="")
    assert content_type.startswith("text/plain; version=0.0.4")
    assert value(parsed(text, is_openmetrics=False), "trioha_puts_total", status="PUT_OK") == 53
    assert scrape(master.metrics_address, method="HEAD")[2] == ""
    slave.stop()
    master.stop()


def test_without_the_key_there_is_no_port_and_the_libraries_are_not_loaded(start_node):
    code = (
        "import sys, trioha.node.node, trioha.cli.node;"
        "print(sorted({'h11', 'prometheus_client'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    assert start_node(role="ASYNC_MASTER").metrics_address == ""


def test_a_port_that_is_in_use_is_one_line_with_exit_code_2(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_node(tmp_path / "store", role="ASYNC_MASTER", **{"trioha.metricsPort": port})
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.splitlines()[-1] == (
        f"trioha: settings: trioha.metricsPort: cannot listen for Prometheus on 127.0.0.1:{port}: "
        "Address already in use; choose another port or stop the program that uses it"
    )


def test_a_port_of_another_server_is_refused_before_the_start(tmp_path):
    port = free_port()
    ports = {"listenPort": port, "ha_port": port + 1, "trioha.metricsPort": port + 1}
    refused = run_node(tmp_path / "store", role="ASYNC_MASTER", **ports)
    assert refused.exit_code == 2
    assert f"is {port + 1}, and so is haListenPort; give another port" in refused.stderr


@pytest.mark.full
def test_hostile_peers_at_the_port_disturb_neither_puts_nor_scrapes(start):
    master = start("master", role="ASYNC_MASTER")
    address = master.metrics_address
    draw = random.Random(5)
    whole = b"GET /metrics HTTP/1.1\r\nHost: node\r\nAccept: application/openmetrics-text\r\n\r\n"
    # Silent ones and ones that do not read, from another address, as many as there are places for them.
    with strangers(address, 4, hosts=1), strangers(address, 4, hosts=1, data=b"GET /metr"):
        raws = [
            *(b"\x00" * 70_000, b"GET /" + b"a" * 100_000, b"\x16\x03\x01\x02\x00" * 20, b"\r\n" * 5000),
            *(b"GET /" + b"a" * 20_000, whole + whole, whole[:-2], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            b"POST /metrics HTTP/1.1\r\n\r\n",
            b"PUT /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
            b"GET /metrics HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9999999999\r\n\r\n",
        ]
        for _ in range(150):
            raw = bytearray(whole)
            for _ in range(draw.randrange(1, 9)):
                raw[draw.randrange(len(raw))] = draw.randrange(256)
            raws.append(bytes(raw))
        answers = [ask(address, raw) for raw in raws]
        assert {answer.split(b" ")[1] for answer in answers if answer} >= {b"200", b"400", b"405", b"431"}
        # An honest scrape from another address is served beside them, and so is a producer.
        assert value(metrics_of(master), "trioha_log_end_offset_bytes") == 0
        assert master.load(20).statuses == {"PUT_OK": 20}
    wait_until(lambda: value(metrics_of(master), "trioha_puts_total", status="PUT_OK") == 20)
    found = values_of(metrics_of(master))
    assert found["trioha_faults_total", frozenset({("kind", "metrics")})] == 0
    assert found["trioha_metrics_requests_total", frozenset({("code", "500")})] == 0
    assert "Traceback" not in master.log()
    assert master.is_running
    master.stop()


@pytest.mark.full
def test_more_connections_than_there_are_places_are_closed_and_counted(start):
    master = start("master", role="ASYNC_MASTER")
    with strangers(master.metrics_address, 40, hosts=1):
        # Of one address there are at most 8: another address is served at once.
        assert value(metrics_of(master), "trioha_puts_total", status="PUT_OK") == 0
        wait_until(
            lambda: value(metrics_of(master), "trioha_metrics_connections_ended_total", reason="refused") > 0
        )
    master.stop()


@pytest.mark.full
def test_scrapes_stay_right_while_many_slaves_come_and_go(start):
    # These slaves say nothing after their first report, and stay connected as long as the test lasts.
    master = start(
        "master", role="ASYNC_MASTER", haHousekeepingInterval=600_000, **{"trioha.haConnectionsPerPeer": 64}
    )
    assert master.load(5).statuses == {"PUT_OK": 5}
    draw = random.Random(7)
    slaves: list[socket.socket] = []
    before: dict[Any, float] = {}
    most = 0
    try:
        for _ in range(30):
            for _ in range(draw.randrange(1, 8)):
                if slaves and draw.random() < 0.5:
                    slaves.pop(draw.randrange(len(slaves))).close()
                elif len(slaves) < 40:
                    slave = socket.create_connection(endpoint(master.ha_address), timeout=WITHIN_S)
                    slave.sendall(encode_report(0))
                    slaves.append(slave)
            # Answers are kept for half a second: some rounds have the same one.
            time.sleep(0.1)
            metrics = metrics_of(master)
            # No series is there twice, none is half there.
            found = values_of(metrics)
            connections = [
                {
                    dict(labels)["connection"]
                    for name, labels in found
                    if name == f"trioha_slave_{suffix}" and ("stage", "sent") not in labels
                }
                for suffix in ("sent_offset_bytes", "lag_bytes", "lag_seconds", "in_sync", "silence_seconds")
            ]
            assert all(one == connections[0] for one in connections)
            assert value(metrics, "trioha_slaves_connected") == len(connections[0])
            most = max(most, len(connections[0]))
            counters = {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in metrics
                if family.type == "counter"
                for sample in family.samples
            }
            assert all(counters[series] >= count for series, count in before.items())
            before = counters
        assert slaves
        wait_until(lambda: value(metrics_of(master), "trioha_slaves_connected") == len(slaves))
        most = max(most, len(slaves))
    finally:
        for slave in slaves:
            slave.close()
    wait_until(lambda: value(metrics_of(master), "trioha_slaves_connected") == 0)
    metrics = metrics_of(master)
    assert [one.name for one in metrics if one.name.startswith("trioha_slave_lag") and one.samples] == []
    ended = sum(
        count
        for (name, _), count in values_of(metrics).items()
        if name == "trioha_slave_connections_ended_total"
    )
    assert ended >= most
    assert {query_name(one) for one in metrics} == documented_of_nodes().keys()
    master.stop()


@pytest.mark.full
def test_a_shortage_of_descriptors_can_be_watched(start):
    limit = 128
    master = start(
        "master",
        role="ASYNC_MASTER",
        program=["bash", "-c", f'ulimit -n {limit} && exec "$@"', "bash", sys.executable, "-m", "trioha"],
    )
    with strangers(master.listen_address, 100):
        wait_until(
            lambda: value(metrics_of(master), "trioha_client_connections_ended_total", reason="refused") > 0
        )
        metrics = metrics_of(master)
        assert value(metrics, "trioha_descriptors_max") == limit
        clients = value(metrics, "trioha_client_connections")
        assert 0 < clients < value(metrics, "trioha_descriptors_open") < limit
        assert value(metrics, "trioha_client_connections_max") < 100
    master.stop()


def probe(node: TriohaNode, path: str) -> tuple[int, str]:
    status, _, text = scrape(node.metrics_address, path=path)
    return status, text


def test_probes_say_that_a_pair_is_ready_and_why_half_of_it_is_not(start):
    master = start("master", role="SYNC_MASTER")
    assert probe(master, "/livez") == (200, "ok\n")
    assert probe(master, "/readyz") == (
        503,
        "[-]in-step failed: 0 of 1 slaves are in sync\nreadyz check failed\n",
    )
    assert probe(master, "/readyz?exclude=in-step") == (200, "ok\n")
    slave = start("slave", slave_of=master)
    wait_until(lambda: probe(master, "/readyz")[0] == 200)
    wait_until(lambda: probe(slave, "/readyz")[0] == 200)
    assert probe(slave, "/readyz?verbose") == (
        200,
        "[+]node ok\n[+]disk ok\n[+]in-step ok\n[+]progress ok\nreadyz check passed\n",
    )
    master.kill()
    wait_until(lambda: probe(slave, "/readyz")[0] == 503)
    assert "there is no connection to the master" in probe(slave, "/readyz")[1]


def test_a_node_has_all_its_settings_from_the_environment(tmp_path):
    settings = {
        "TRIOHA_STORE_PATH_ROOT_DIR": str(tmp_path / "store"),
        "TRIOHA_BROKER_IP1": "127.0.0.1",
        "TRIOHA_BIND_ADDRESS": "127.0.0.1",
        "TRIOHA_LISTEN_PORT": "0",
        "TRIOHA_METRICS_PORT": "0",
        "TRIOHA_MAPPED_FILE_SIZE_COMMIT_LOG": "65536",
    }
    with subprocess.Popen(
        [*DIE_WITH_PARENT, sys.executable, "-m", "trioha", "node"],
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as node:
        assert node.stdout is not None
        line = node.stdout.readline()
        assert line.startswith("ready role=ASYNC_MASTER "), line
        assert f"store={tmp_path / 'store'}" in line
        metrics = line.split(" metrics=")[1].strip()
        assert scrape(metrics, path="/readyz")[0] == 200
        node.terminate()
        assert node.wait(WITHIN_S) == 0


async def test_probes_are_answered_before_the_store_is_there_and_while_it_is_closed(tmp_path, monkeypatch):
    config = evolve(config_of(tmp_path / "store", {}), metrics_port=free_port())
    address = f"127.0.0.1:{config.metrics_port}"
    recovered, answers = trio.Event(), []

    async def ask() -> None:
        answers.extend(
            [
                (await trio.to_thread.run_sync(partial(scrape, address, path=path)))[::2]
                for path in ("/livez", "/readyz", "/metrics")
            ]
        )

    async def open_after_questions(*arguments: Any, **settings: Any) -> MessageStore:
        await recovered.wait()
        return await open_store(*arguments, **settings)

    async def close_after_questions(store: MessageStore) -> None:
        await ask()
        await close_store(store)

    monkeypatch.setattr("trioha.node.node.open_store", open_after_questions)
    monkeypatch.setattr("trioha.node.node.close_store", close_after_questions)
    ready, stopping = trio.Event(), trio.Event()
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(run_node_here, config, on_ready=lambda _: ready.set(), stopping=stopping)
            )
            while (await trio.to_thread.run_sync(is_listening, address)) is False:
                await trio.lowlevel.checkpoint()
            await ask()
            recovered.set()
            await ready.wait()
            stopping.set()
    recovering, ended = "the store is being recovered", "the node is stopping"
    assert answers == [
        answer
        for reason in (recovering, ended)
        for answer in (
            (200, "ok\n"),
            (503, f"[-]node failed: {reason}\nreadyz check failed\n"),
            (503, f"no metrics now: not ready: {reason}\n"),
        )
    ]


def is_listening(address: str) -> bool:
    try:
        socket.create_connection(endpoint(address), timeout=WITHIN_S).close()
    except ConnectionRefusedError:
        return False
    return True
