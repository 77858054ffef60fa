"""The budget of file descriptors of a node."""

import pytest

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.keys.server import client_bytes_needed
from trioha.errors import ConfigError
from trioha.node import budget
from trioha.node.broker_service import server_limits
from trioha.node.budget import DescriptorBudget, descriptor_budget
from trioha.remoting.memory import bytes_max_for


def divided(monkeypatch: pytest.MonkeyPatch, limit: int, **settings: object) -> DescriptorBudget:
    monkeypatch.setattr(budget, "descriptor_limit", lambda: limit)
    monkeypatch.setattr(budget, "open_descriptors", lambda _: 8)
    return descriptor_budget(BrokerConfig(**{"listen_port": 0, **settings}))  # type: ignore[arg-type]


def parts(found: DescriptorBudget) -> tuple[int, int, int, int]:
    return found.clients, found.queue_files, found.ha_connections, found.reserve


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1 << 20, (1024, 4096, 64, 64)),
        (5434, (1024, 256 + 3000, 64, 64)),
        (1438, (1024, 256 + 3, 64, 64)),
        (1434, (1024, 256, 64, 64)),
        (1433, (1023, 256, 64, 64)),
        (1024, (614, 256, 64, 64)),
        (300, (162, 64, 16, 32)),
        (128, (48, 24, 8, 22)),
        (64, (8, 6, 8, 16)),
        (50, (8, 4, 4, 8)),
    ],
)
def test_every_part_has_a_maximum_and_their_sum_fits_the_limit(monkeypatch, limit, expected):
    found = divided(monkeypatch, limit)
    assert parts(found) == expected
    assert sum(parts(found)) + 26 <= limit
    assert (found.lowered is None) == (limit >= 1434)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (20_000, (1024, 4096, 64, 64, 1024)),
        (2000, (560, 256, 64, 64, 1024)),
        (1024, (256, 256, 64, 64, 352)),
        (300, (48, 64, 16, 32, 108)),
    ],
)
def test_an_embedded_name_server_has_a_part_of_its_own(monkeypatch, limit, expected):
    found = divided(monkeypatch, limit, with_name_server=True)
    assert (*parts(found), found.name_server_clients) == expected
    # The connection to it, its listeners and its table.
    assert sum(parts(found)) + found.name_server_clients + 26 + 6 <= limit
    assert divided(monkeypatch, limit).name_server_clients == 0


@pytest.mark.parametrize("limit", [20_000, 1024, 300, 128, 64, 56])
def test_the_port_for_metrics_has_a_part_of_its_own(monkeypatch, limit):
    assert divided(monkeypatch, limit).metrics_connections == 0
    found = divided(monkeypatch, limit, metrics_port=0)
    assert 2 <= found.metrics_connections <= 16
    # Its listeners.
    assert sum(parts(found)) + found.metrics_connections + 26 + 2 <= limit


def test_one_line_names_every_lowered_maximum(monkeypatch):
    assert divided(monkeypatch, 20_000).lowered is None
    assert divided(monkeypatch, 1024).lowered == (
        "this process may open 1024 files (ulimit -n): lowered trioha.connectionsMax from 1024 to 614"
    )
    assert divided(monkeypatch, 300).lowered == (
        "this process may open 300 files (ulimit -n): lowered trioha.connectionsMax from 1024 to 162, "
        "open files of queues from 256 to 64, trioha.haConnectionsMax from 64 to 16, "
        "the reserve from 64 to 32"
    )


def test_a_lowered_maximum_is_a_warning_if_it_is_configured_or_low(monkeypatch):
    # With a system's usual limit a node of defaults is as it should be.
    assert not divided(monkeypatch, 20_000).is_short
    assert not divided(monkeypatch, 1024).is_short
    assert not divided(monkeypatch, 1024, with_name_server=True, metrics_port=0).is_short
    assert divided(monkeypatch, 300).is_short
    assert divided(monkeypatch, 1024, connections_max=1000).is_short
    assert not divided(monkeypatch, 1024, connections_max=500).is_short
    assert divided(monkeypatch, 1024, ha_connections_max=1000).is_short


def test_a_limit_that_is_too_low_for_any_node_is_one_clear_line(monkeypatch):
    with pytest.raises(
        ConfigError, match="may open 49 files, a node with these settings needs at least 50; raise"
    ):
        divided(monkeypatch, 49)


def test_slaves_and_recordings_need_more(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="needs at least 62"):
        divided(monkeypatch, 49, broker_role=BrokerRole.SLAVE, broker_id=1, record_dir=tmp_path)


def test_the_second_port_for_clients_needs_listeners(monkeypatch):
    with pytest.raises(ConfigError, match="needs at least 52"):
        divided(monkeypatch, 49, listen_port=10911)


def test_connections_of_one_address_are_lowered_with_all_connections(monkeypatch):
    assert divided(monkeypatch, 20_000).clients_per_peer == 512
    assert divided(monkeypatch, 300).clients_per_peer == 81
    assert divided(monkeypatch, 50).clients_per_peer == 4
    assert divided(monkeypatch, 50, connections_per_peer=1024).clients_per_peer == 8
    assert divided(monkeypatch, 20_000, connections_max=1).clients_per_peer == 1


def test_slaves_are_still_accepted_while_clients_are_not(monkeypatch):
    found = divided(monkeypatch, 300)
    assert found.client_gate().keep == 32
    assert found.ha_gate().keep == 16


@pytest.mark.parametrize("max_message_size", [1000, 4 << 20, 20 << 20, 500 << 20])
def test_the_server_has_the_limits_of_the_configuration(monkeypatch, max_message_size):
    config = BrokerConfig(
        max_message_size=max_message_size, requests_in_flight_max=7, client_idle_timeout=500
    )
    found = divided(monkeypatch, 300)
    limits = server_limits(config, found)
    assert (limits.connections_max, limits.connections_per_peer_max) == (162, 81)
    assert (limits.in_flight_max, limits.idle_timeout_s) == (7, 0.5)
    assert limits.frame_bytes_max >= max_message_size
    assert limits.total_bytes_max == config.client_bytes_max
    # The least that the configuration accepts is what the server needs.
    assert client_bytes_needed(config.frame_bytes_max) == bytes_max_for(config.frame_bytes_max)
