"""The account and the TLS of commands that are clients of brokers."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from attrs import frozen
from cyclopts import Parameter

from trioha.config.yaml_file import YamlFields, parse_yaml, read_file
from trioha.errors import ConfigError
from trioha.net.tls import client_context
from trioha.remoting.signature import Credentials

CredentialsOption: TypeAlias = Annotated[Path | None, Parameter(name="--credentials")]
TlsOption: TypeAlias = Annotated[Path | None, Parameter(name="--tls-ca")]

_KEYS: Final = frozenset(("accessKey", "secretKey"))


@frozen
class ClientSecurity:
    """How a client signs and encrypts."""

    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, credentials: Path | None, tls_ca: Path | None) -> ClientSecurity:
        """Of a file with accessKey and secretKey, as RocketMQ's conf/tools.yml, and one with authorities.

        Raises ConfigError.
        """
        return cls(
            None if credentials is None else read_credentials(credentials),
            None if tls_ca is None else client_context(tls_ca, key="--tls-ca"),
        )


def read_credentials(path: Path) -> Credentials:
    """The account of a YAML file. Blocks. Raises ConfigError."""
    document = parse_yaml(read_file(path), file=path)
    if document is None:
        raise ConfigError("is empty", file=path, hint="give accessKey and secretKey")
    fields = YamlFields.of(document, file=path, keys=_KEYS, what="the file")
    return Credentials(fields.needed("accessKey"), fields.needed("secretKey"))
