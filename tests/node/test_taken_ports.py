"""A node that cannot listen leaves nothing behind."""

import socket

import pytest

from tests.node_process import run_trioha
from tests.ports import free_port

pytestmark = pytest.mark.process


@pytest.mark.parametrize("key", ["listenPort", "haListenPort", "trioha.metricsPort"])
def test_a_port_that_is_in_use_is_one_line_and_no_store(tmp_path, key):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "broker.conf"
        settings = {
            "brokerRole": "ASYNC_MASTER",
            "listenPort": free_port(),
            "storePathRootDir": tmp_path / "store",
            "trioha.recordDir": tmp_path / "sessions",
            "trioha.bindAddress": "127.0.0.1",
            "trioha.metricsBindAddress": "127.0.0.1",
            key: port,
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        said = run_trioha("node", "-c", config)
    assert said.exit_code == 2
    assert f"127.0.0.1:{port}" in said.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["broker.conf"]
