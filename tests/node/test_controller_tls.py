"""Node processes of controller mode whose connections are encrypted."""

import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tests.node.test_controller_mode import BOTH, Member, scripted_controller
from trioha.net.tls import ServerTls

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def controller(authority):
    """A controller that closes plain connections."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with scripted_controller(ServerTls(context, is_required=True)) as running:
        yield running


@pytest.fixture
def join(tmp_path, controller):
    with ExitStack() as members:

        def start(name: str, authority: trustme.CA) -> Member:
            member = Member(tmp_path, name, controller, **tls(tmp_path / f"{name}-tls", authority))
            members.callback(member.end)
            return member

        yield start


def tls(folder: Path, authority: trustme.CA) -> dict[str, object]:
    """Settings of a node with a certificate of `authority` for everything."""
    folder.mkdir()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "node.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {
        "trioha.haTlsCert": folder / "node.pem",
        "trioha.haTlsKey": folder / "node.pem",
        "trioha.haTlsCa": folder / "ca.pem",
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": folder / "ca.pem",
        "tls.server.mode": "permissive",
        "tls.server.certPath": folder / "node.pem",
        "tls.server.keyPath": folder / "node.pem",
    }


def test_a_pair_encrypts_what_it_says_to_controllers_and_to_each_other(controller, join, authority):
    first = join("first", authority)
    controller.wait_for_master(1, first)
    second = join("second", authority)
    controller.wait_for_set(BOTH)
    first.stored(20)
    second.node.wait(max_offset=first.epochs().max_offset)
    assert second.log_bytes() == first.log_bytes()
