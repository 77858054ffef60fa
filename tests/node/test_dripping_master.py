"""A master that sends a byte now and then keeps no slave."""

import select
import socket
import time

import pytest

from tests.node_process import WITHIN_S
from trioha.ha.frames import HEADER

pytestmark = pytest.mark.process


def test_a_slave_leaves_a_master_that_drips_the_bytes_of_a_frame(start_node):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        slave = start_node(
            role="SLAVE",
            ha_master_address=f"{host}:{port}",
            haHousekeepingInterval=1000,
            haSendHeartbeatInterval=200,
        )
        listener.settimeout(WITHIN_S)
        connection = listener.accept()[0]
        with connection:
            connection.sendall(HEADER.pack(0, 30_000))
            deadline_s = time.monotonic() + WITHIN_S
            is_open = True
            while is_open and time.monotonic() < deadline_s:
                # Five bytes a second; its reports come meanwhile.
                readable, _, _ = select.select([connection], [], [], 0.2)
                try:
                    is_open = not readable or bool(connection.recv(4096))
                    connection.sendall(b"\0")
                except OSError:
                    is_open = False
        assert not is_open, "the slave stays"
        assert "ha housekeeping, found this connection" in slave.wait_logged("expired")
