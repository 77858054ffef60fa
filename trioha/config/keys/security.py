"""Keys of access control and of TLS for clients and name servers."""

# ruff: noqa: RUF009 - `setting` is a field specifier of attrs

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from attrs import Factory, frozen

from trioha.config import values
from trioha.config.setting import setting


class TlsMode(StrEnum):
    """What a port for clients does with connections that start TLS, and with others."""

    DISABLED = "disabled"
    """Connections that start TLS are closed."""
    PERMISSIVE = "permissive"
    """Both are served."""
    ENFORCING = "enforcing"
    """Connections that do not start TLS are closed."""


class ClientAuth(StrEnum):
    """Whether clients are asked for certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    """A client may have none."""
    REQUIRE = "require"


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class SecurityKeys:
    """Access control and TLS."""

    acl_enable: bool = setting("aclEnable", values.boolean, default=False)
    """Whether requests of clients must be signed and allowed by the rules of `acl_file`. RocketMQ default:
    false."""

    rocketmq_home: Path | None = setting("rocketmqHome", values.optional_directory, default=None)
    """Folder of a RocketMQ distribution: its conf/plain_acl.yml is the default of `acl_file`.

    RocketMQ default: the environment variable ROCKETMQ_HOME, here too.
    """

    acl_file: Path | None = setting(
        "trioha.aclFile",
        values.optional_directory,
        default=Factory(
            lambda self: self.rocketmq_home and self.rocketmq_home / "conf" / "plain_acl.yml", takes_self=True
        ),
    )
    """File of the rules of access control, in the format of RocketMQ's plain_acl.yml; read again when it
    changes."""

    access_key: str | None = setting("trioha.accessKey", values.optional_text, default=None)
    """Account with which the node signs its own requests to name servers."""

    secret_key: str | None = setting("trioha.secretKey", values.optional_text, default=None, is_secret=True)
    """Secret of that account."""

    tls_server_mode: TlsMode = setting("tls.server.mode", values.one_of(TlsMode), default=TlsMode.PERMISSIVE)
    """What the ports for clients do with TLS, if there is a certificate: see `TlsMode`. RocketMQ default:
    permissive."""

    tls_server_cert_path: Path | None = setting(
        "tls.server.certPath", values.optional_directory, default=None
    )
    """PEM file of the certificate for clients. RocketMQ default: none; it makes a certificate that no client
    can verify."""

    tls_server_key_path: Path | None = setting("tls.server.keyPath", values.optional_directory, default=None)
    """PEM file of the certificate's key."""

    tls_server_key_password: str | None = setting(
        "tls.server.keyPassword", values.optional_text, default=None, is_secret=True
    )
    """Password of that file."""

    tls_server_trust_cert_path: Path | None = setting(
        "tls.server.trustCertPath", values.optional_directory, default=None
    )
    """PEM file of the authorities that may have signed certificates of clients."""

    tls_server_auth_client: bool = setting("tls.server.authClient", values.boolean, default=False)
    """Whether certificates of clients are verified. RocketMQ default: false."""

    tls_server_need_client_auth: ClientAuth = setting(
        "tls.server.need.client.auth", values.one_of(ClientAuth), default=ClientAuth.NONE
    )
    """Whether clients are asked for certificates. RocketMQ default: none."""

    tls_enable: bool = setting("tls.enable", values.boolean, default=False)
    """Whether the node's own connections to name servers use TLS. RocketMQ default: false."""

    tls_client_auth_server: bool = setting("tls.client.authServer", values.boolean, default=False)
    """Whether the certificates of those name servers are verified. RocketMQ default: false.

    RocketMQ checks the authority only, trioha also the name of the host.
    """

    tls_client_trust_cert_path: Path | None = setting(
        "tls.client.trustCertPath", values.optional_directory, default=None
    )
    """PEM file of the authorities that may have signed them."""

    tls_config_file: Path | None = setting("tls.config.file", values.optional_directory, default=None)
    """Properties file with the `tls.` settings that are not given here. RocketMQ default:
    /etc/rocketmq/tls.properties."""
