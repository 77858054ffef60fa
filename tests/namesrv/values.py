"""Registrations and requests for the tests of the name server."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from attrs import evolve

from tests.clocks import Clock
from trioha.metadata.data_version import DataVersion
from trioha.metadata.registration import Registration, encode_registration
from trioha.metadata.topics import TopicConfig
from trioha.namesrv.kv_config import KvConfig
from trioha.namesrv.processor import NameServerProcessor
from trioha.namesrv.registry import BrokerIdentity, BrokerRequest, MasterAddresses, Registry
from trioha.namesrv.settings import NameServerSettings
from trioha.remoting.address import Address
from trioha.remoting.command import BadRequestError, RemotingCommand, request, response_to
from trioha.remoting.serving import Peer


def identity(
    broker_id: int = 0, *, name: str = "broker-a", cluster: str = "Cluster", address: str | None = None
) -> BrokerIdentity:
    return BrokerIdentity(cluster, name, address or f"{name}:{10911 + broker_id}", broker_id)


def topics(*names: str, counter: int = 1, state: int = 0, **fields: Any) -> Registration:
    return Registration(
        DataVersion(counter, 1_700_000_000_000, state),
        {
            name: TopicConfig(name, **{"read_queue_nums": 4, "write_queue_nums": 4, **fields})
            for name in names
        },
    )


def body_with(registration: Registration) -> bytes:
    """The body of a registration as a broker of 4.9 sends it."""
    table = {name: topic.to_json() for name, topic in registration.topics.items()}
    return encode_registration(table, data_version=registration.data_version.as_known_to(407).to_json())


def register(
    registry: Registry, who: BrokerIdentity, registration: Registration, **fields: Any
) -> MasterAddresses | None:
    deletes_absent = fields.pop("deletes_absent", False)
    asked = BrokerRequest(who, f"{who.address}-ha", **{"connection": 1, **fields})
    return registry.register(asked, registration, deletes_absent=deletes_absent)


class Asked:
    """A processor that is asked without a server."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = Clock(1000.0)
        self.registry = Registry(clock=self.clock)
        folder.mkdir(parents=True, exist_ok=True)
        self.kv = KvConfig.load(folder / "kvConfig.json")
        self.processor = NameServerProcessor(self.registry, self.kv, NameServerSettings(**settings))

    async def ask(
        self,
        code: int,
        body: bytes | memoryview = b"",
        *,
        version: int = 407,
        connection: int = 1,
        **fields: str,
    ) -> RemotingCommand:
        """The answer, or what the server makes of a refusal."""
        asked = evolve(request(code, ext_fields=fields, body=body), version=version)
        return await self.answer(asked, connection=connection)

    async def answer(self, asked: RemotingCommand, *, connection: int = 1) -> RemotingCommand:
        try:
            answer = self.processor(asked, Peer(Address("192.0.2.1", 4711), connection))
            if inspect.isawaitable(answer):
                answer = await answer
        except BadRequestError as error:
            return response_to(asked, error.code, remark=error.reason)
        assert isinstance(answer, RemotingCommand)
        return answer
