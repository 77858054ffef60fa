"""Files of certificates and rules that a broker.conf names: a node opens them, the doctor checks them."""

from __future__ import annotations

import ssl
from typing import Final

from trioha.config.broker import BrokerConfig
from trioha.config.keys.security import ClientAuth, TlsMode
from trioha.errors import ConfigError
from trioha.net.tls import (
    MutualTls,
    MutualTlsFiles,
    ServerTls,
    TlsFiles,
    client_context,
    server_context,
)

_VERIFY_MODES: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


def server_tls(config: BrokerConfig) -> ServerTls | None:
    """TLS of the ports for clients; None without it. Blocks. Raises ConfigError."""
    certificate, key = config.tls_server_cert_path, config.tls_server_key_path
    if certificate is None or key is None or config.tls_server_mode is TlsMode.DISABLED:
        return None
    files = TlsFiles(
        certificate,
        key,
        config.tls_server_key_password,
        config.tls_server_trust_cert_path if config.tls_server_auth_client else None,
        _VERIFY_MODES[config.tls_server_need_client_auth],
    )
    return ServerTls(server_context(files), is_required=config.tls_server_mode is TlsMode.ENFORCING)


def name_server_tls(config: BrokerConfig) -> ssl.SSLContext | None:
    """TLS of connections to name servers; None without it. Blocks. Raises ConfigError."""
    if not config.tls_enable:
        return None
    authority = config.tls_client_trust_cert_path if config.tls_client_auth_server else None
    return client_context(authority, key="tls.client.trustCertPath")


def mutual_tls(config: BrokerConfig) -> MutualTls | None:
    """Mutual TLS of connections for HA; None without it. Blocks. Raises ConfigError."""
    if config.ha_tls_cert is None or config.ha_tls_key is None or config.ha_tls_ca is None:
        return None
    return MutualTls.open(
        MutualTlsFiles(certificate=config.ha_tls_cert, key=config.ha_tls_key, authority=config.ha_tls_ca)
    )


def problems_of_files(config: BrokerConfig) -> tuple[ConfigError, ...]:
    """Why a node with these settings would not start, by the files that they name. Blocks."""
    problems = []
    for check in (server_tls, name_server_tls, mutual_tls, _check_rules):
        try:
            check(config)
        except ConfigError as problem:
            problems.append(problem)
    return tuple(problems)


def _check_rules(config: BrokerConfig) -> None:
    if config.acl_enable and config.acl_file is not None:
        # A node without access control does not need the module.
        from trioha.broker.acl_file import load_acl  # noqa: PLC0415

        load_acl(config.acl_file)
