"""The files of `configs/` for one machine load without warnings, and match each other."""

from pathlib import Path

import pytest

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.loading import load_config

CONFIGS = Path(__file__).parents[2] / "configs"
OF_CONTAINERS = {"compose", "kubernetes"}
"""Folders whose files are tested in tests/deployment."""
FILES = sorted(
    file for file in CONFIGS.rglob("*.conf") if file.relative_to(CONFIGS).parts[0] not in OF_CONTAINERS
)

GROUPS = [
    ("sync-master.conf", ["sync-slave.conf"]),
    ("async-master.conf", ["async-slave.conf"]),
    ("one-master-two-slaves/master.conf", [f"one-master-two-slaves/slave-{n}.conf" for n in (1, 2)]),
]


def config(name: str) -> BrokerConfig:
    return load_config(CONFIGS / name).config


def test_every_file_belongs_to_a_group():
    named = {name for master, slaves in GROUPS for name in (master, *slaves)}
    assert {str(file.relative_to(CONFIGS)) for file in FILES} == named


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_loads_without_warnings_and_stays_on_loopback(file):
    loaded = load_config(file)
    assert loaded.warnings == ()
    assert loaded.config.bind_address == "127.0.0.1"
    assert loaded.config.broker_ip1 == loaded.config.broker_ip2 == "127.0.0.1"
    assert loaded.config.store_path_root_dir.is_relative_to(Path.home() / "trioha")


@pytest.mark.parametrize(("master_name", "slave_names"), GROUPS)
def test_the_slaves_of_a_group_fit_their_master(master_name, slave_names):
    master, slaves = config(master_name), [config(name) for name in slave_names]
    assert master.broker_role is not BrokerRole.SLAVE
    for slave in slaves:
        assert slave.broker_role is BrokerRole.SLAVE
        assert slave.ha_master_endpoint == (master.broker_ip2, master.ha_listen_port)
        assert (slave.broker_cluster_name, slave.broker_name) == (
            master.broker_cluster_name,
            master.broker_name,
        )
        assert slave.mapped_file_size_commit_log == master.mapped_file_size_commit_log
    assert len({slave.broker_id for slave in slaves}) == len(slaves)
    assert master.slave_acks_needed <= len(slaves)


def test_all_of_them_can_run_on_one_host():
    configs = [load_config(file).config for file in FILES]
    ports = [port for one in configs for port in (one.listen_port, one.ha_listen_port)]
    assert len(set(ports)) == len(ports)
    assert len({one.store_path_root_dir for one in configs}) == len(configs)
