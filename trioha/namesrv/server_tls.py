"""TLS of a name server that runs by itself."""

from __future__ import annotations

from trioha.config.keys.security import TlsMode
from trioha.errors import ConfigError
from trioha.namesrv.settings import NameServerSettings
from trioha.net.tls import ServerTls, TlsFiles, server_context


def tls_of(settings: NameServerSettings) -> ServerTls | None:
    """TLS of the settings; None without a certificate. Blocks. Raises ConfigError."""
    certificate, key = settings.tls_server_cert_path, settings.tls_server_key_path
    mode = settings.tls_server_mode
    if certificate is None or key is None:
        if certificate is not None or key is not None or mode is TlsMode.ENFORCING:
            raise ConfigError(
                "is missing: TLS needs a certificate and its key",
                key="tls.server.certPath" if certificate is None else "tls.server.keyPath",
                hint="give both",
            )
        return None
    if mode is TlsMode.DISABLED:
        return None
    files = TlsFiles(certificate, key, settings.tls_server_key_password)
    return ServerTls(server_context(files), is_required=mode is TlsMode.ENFORCING)
