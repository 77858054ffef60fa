"""The options of commands that are clients of brokers and name servers: their account and their TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from attrs import frozen
from cyclopts import Parameter

from trioha.config.yaml_file import YamlFields, parse_yaml, read_file
from trioha.errors import ConfigError
from trioha.net.tls import client_context
from trioha.remoting.client import ClientSecurity
from trioha.remoting.signature import Credentials

_KEYS: Final = frozenset(("accessKey", "secretKey"))


@Parameter(name="*")
@frozen(kw_only=True)
class SecurityOptions:
    """`--credentials` and `--tls-ca`."""

    credentials: Annotated[
        Path | None,
        Parameter(
            help="YAML file with accessKey and secretKey, as RocketMQ's conf/tools.yml: requests are signed."
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        Parameter(help="PEM file of the authority of the peers' certificates: connections use TLS."),
    ] = None

    def read(self) -> ClientSecurity:
        """The content of the files. Blocks. Raises ConfigError."""
        return ClientSecurity(
            None if self.credentials is None else read_credentials(self.credentials),
            None if self.tls_ca is None else client_context(self.tls_ca, key="--tls-ca"),
        )


NO_SECURITY_OPTIONS: Final = SecurityOptions()


def read_credentials(path: Path) -> Credentials:
    """The account of a YAML file. Blocks. Raises ConfigError."""
    document = parse_yaml(read_file(path), file=path)
    if document is None:
        raise ConfigError("is empty", file=path, hint="give accessKey and secretKey")
    fields = YamlFields.of(document, file=path, keys=_KEYS, what="the file")
    return Credentials(fields.needed("accessKey"), fields.needed("secretKey"))
