"""TLS: contexts of the ports for clients and of the HA port, and a server's stream that can be drained.

Clients start TLS on the same port as plain connections (`trioha.remoting.opening`). At the HA port TLS is
mutual, and all connections use it.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from attrs import define, frozen

from trioha.errors import ConfigError

RECEIVE_BYTES_MAX: Final = 16 * 1024
"""Of one read of encrypted bytes, which wait in memory until their record is complete: about a record."""
ENCRYPT_BYTES_MAX: Final = 64 * 1024
"""Of one call that encrypts: so large is the copy of what is sent."""


@frozen
class TlsFiles:
    """PEM files of a server."""

    certificate: Path
    """tls.server.certPath: the certificate with its chain."""
    key: Path
    """tls.server.keyPath."""
    key_password: str | None = None
    """tls.server.keyPassword."""
    authority: Path | None = None
    """tls.server.trustCertPath: authorities that may have signed certificates of clients."""
    verify_mode: ssl.VerifyMode = ssl.CERT_NONE
    """Whether clients may or must have a certificate of `authority`."""


@frozen
class MutualTlsFiles:
    """PEM files for mutual TLS at the HA port (trioha.haTlsCert, haTlsKey, haTlsCa)."""

    certificate: Path
    """The node's own certificate, with its chain."""
    key: Path
    authority: Path
    """Certificates of the authorities that may have signed the peer's certificate."""


@define
class MutualTls:
    """Mutual TLS of a node's connections for HA."""

    server: ssl.SSLContext
    """Of the next handshakes with slaves; another one when the certificates were renewed."""
    client: ssl.SSLContext
    """Of the next handshake with the master, likewise."""

    @classmethod
    def open(cls, files: MutualTlsFiles) -> MutualTls:
        """Read the files. Blocks. Raises ConfigError for files that cannot be used."""
        return cls(mutual_server_context(files), mutual_client_context(files))


@define
class ServerTls:
    """TLS of one server."""

    context: ssl.SSLContext
    """Of the next handshakes; another one when the certificate was renewed."""
    is_required: bool = False
    """Whether plain connections are closed."""
    handshake_timeout_s: float = 10.0
    """From the first byte of a connection to the end of the handshake."""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of a server. Blocks. Raises ConfigError for files that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(
        context,
        files.certificate,
        files.key,
        password=files.key_password,
        settings=("tls.server.certPath", "tls.server.keyPath"),
        hint="both are PEM files; tls.server.keyPassword is that of the key",
    )
    if files.authority is not None:
        _load_authority(context, files.authority, key="tls.server.trustCertPath")
        context.verify_mode = files.verify_mode
    return context


def client_context(authority: Path | None, *, key: str) -> ssl.SSLContext:
    """The context of a client. Blocks. Raises ConfigError for a file that cannot be used, which `key` names.

    The server's certificate must be of `authority` and name the host; with None any certificate is accepted,
    which encrypts and does not authenticate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        _load_authority(context, authority, key=key)
    return context


def mutual_server_context(files: MutualTlsFiles) -> ssl.SSLContext:
    """The context of the HA port, which requires the peer's certificate. Blocks. Raises ConfigError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    _load_mutual(context, files)
    return context


def mutual_client_context(files: MutualTlsFiles) -> ssl.SSLContext:
    """The context of a slave: its master's certificate must be of the authority and name the host. Blocks.
    Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A default context for servers would be as strict, and trust the authorities of the machine, too.
    context.verify_flags |= ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).verify_flags
    _load_mutual(context, files)
    return context


def _load_mutual(context: ssl.SSLContext, files: MutualTlsFiles) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(
        context,
        files.certificate,
        files.key,
        password=None,
        settings=("trioha.haTlsCert", "trioha.haTlsKey"),
        hint="both are PEM files, the key without a passphrase",
    )
    _load_authority(context, files.authority, key="trioha.haTlsCa")


def _load_certificate(
    context: ssl.SSLContext,
    certificate: Path,
    key: Path,
    *,
    password: str | None,
    settings: tuple[str, str],
    hint: str,
) -> None:
    """Load a certificate and its key, whose `settings` errors name."""
    for setting, path in zip(settings, (certificate, key), strict=True):
        _check_readable(path, setting)
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate, key, password=password or "")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{certificate} and {key} are not a certificate and its key: {_reason(error)}",
            key=settings[0],
            hint=hint,
        ) from None


def _load_authority(context: ssl.SSLContext, path: Path, *, key: str) -> None:
    _check_readable(path, key)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{path} has no certificates: {_reason(error)}", key=key, hint="a PEM file"
        ) from None


def _check_readable(path: Path, key: str) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", key=key) from None


def _reason(error: Exception) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else None) or str(error) or "unusable"


class _Encrypted(trio.abc.Stream):
    """The transport under TLS, with short reads."""

    def __init__(self, transport: trio.abc.Stream) -> None:
        self._transport = transport

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._transport.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._transport.receive_some(max_bytes or RECEIVE_BYTES_MAX)

    async def aclose(self) -> None:
        await self._transport.aclose()


class TlsTransport(trio.abc.HalfCloseableStream):
    """The server's end of a TLS connection, whose handshake is complete.

    After `send_eof` nothing is decrypted any more: received bytes are only worth discarding.
    """

    def __init__(self, transport: trio.abc.HalfCloseableStream, context: ssl.SSLContext) -> None:
        self._transport = transport
        # Peers that close the connection without a close_notify alert are common; frames have lengths.
        self._tls = trio.SSLStream(_Encrypted(transport), context, server_side=True, https_compatible=True)
        self._is_ended = False

    async def do_handshake(self) -> None:
        """Complete the handshake. Raises BrokenResourceError."""
        await self._tls.do_handshake()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`. If cancelled, an unknown part was sent: the stream cannot be used further."""
        with memoryview(data) as whole:
            for start in range(0, len(whole), ENCRYPT_BYTES_MAX):
                with whole[start : start + ENCRYPT_BYTES_MAX] as part:
                    await self._tls.send_all(part)

    async def wait_send_all_might_not_block(self) -> None:
        """Return when the stream accepts bytes again."""
        await self._tls.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Some bytes, at most `max_bytes` and one TLS record (16 KiB); b"" at the end of the stream."""
        if self._is_ended:
            return await self._transport.receive_some(max_bytes)
        return await self._tls.receive_some(max_bytes)

    async def send_eof(self) -> None:
        """Send a close_notify alert and wait for the peer's, then close the sending side."""
        self._is_ended = True
        # It fails where the peer has sent more requests or has closed the connection.
        with suppress(trio.BrokenResourceError):
            await self._tls.unwrap()
        await self._transport.send_eof()

    async def aclose(self) -> None:
        """Close the connection without an alert."""
        await self._tls.aclose()
