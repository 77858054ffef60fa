"""`trioha namesrv` as a process."""

import json
import signal
import ssl

import pytest
import trio
import trustme

from tests.node_process import name_server
from trioha.net.tls import client_context
from trioha.remoting.client import ClientSecurity, ConnectionLostError, open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request

pytestmark = pytest.mark.process


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
def test_it_serves_until_a_signal_and_keeps_its_table(tmp_path, number):
    path = tmp_path / "kv" / "kvConfig.json"
    arguments = ("--port", "0", "-p", f"kvConfigPath={path}", "-p", "bindAddress=127.0.0.1")

    async def ask(address: str, code: int, **fields: str) -> dict[str, str]:
        async with open_client(address) as client:
            answer = await client.request(request(code, ext_fields=fields))
        assert answer.code == 0
        return dict(answer.ext_fields)

    with name_server(*arguments) as (process, ready):
        assert ready["kv_config"] == str(path)
        trio.run(lambda: ask(ready["listen"], RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v"))
        process.send_signal(number)
        assert process.wait(60) == 0
    assert json.loads(path.read_text()) == {"configTable": {"N": {"k": "v"}}}
    with name_server(*arguments) as (process, ready):
        told = trio.run(lambda: ask(ready["listen"], RequestCode.GET_KV_CONFIG, namespace="N", key="k"))
        process.terminate()
        assert process.wait(60) == 0
    assert told == {"value": "v"}


def test_it_serves_over_tls_and_does_not_show_the_password_of_its_key(tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    settings = {
        "kvConfigPath": tmp_path / "kvConfig.json",
        "bindAddress": "127.0.0.1",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": tmp_path / "server.pem",
        "tls.server.keyPath": tmp_path / "server.pem",
        "tls.server.keyPassword": "not-to-be-shown",
    }
    arguments = [part for key, value in settings.items() for part in ("-p", f"{key}={value}")]
    context = client_context(tmp_path / "ca.pem", key="--tls-ca")

    async def shown(address: str, tls: ssl.SSLContext | None) -> str:
        async with open_client(address, security=ClientSecurity(tls=tls)) as client:
            answer = await client.request(request(RequestCode.GET_NAMESRV_CONFIG))
        return bytes(answer.body).decode()

    with name_server("--port", "0", *arguments) as (_, ready):
        text = trio.run(shown, ready["listen"], context)
        assert "tls.server.mode=enforcing" in text
        assert "not-to-be-shown" not in text
        with pytest.raises(ConnectionLostError):
            trio.run(shown, ready["listen"], None)


def test_what_it_cannot_use_is_one_line(tmp_path, refusal):
    damaged = tmp_path / "kvConfig.json"
    damaged.write_text("{")
    for arguments, reason in (
        (["--port", "70000"], "listenPort: 70000 is out of range"),
        (["-c", str(tmp_path / "none.conf")], "none.conf: cannot be read"),
        (["--port", "0", "-p", f"kvConfigPath={damaged}"], "is damaged"),
        (["-p", "tls.server.mode=enforcing"], "tls.server.certPath: is missing: TLS needs a certificate"),
        (["-p", f"tls.server.certPath={damaged}"], "tls.server.keyPath: is missing: TLS needs a certificate"),
        (
            ["-p", f"tls.server.certPath={damaged}", "-p", f"tls.server.keyPath={damaged}"],
            "are not a certificate and its key",
        ),
    ):
        assert reason in refusal("namesrv", *arguments)
