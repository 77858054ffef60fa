"""Admission to the HA port: allowed peers, limits of connections, TLS.

Any peer that reaches the port of a RocketMQ master may read its whole log and acknowledge it. Here a peer
must come from an allowed address, connections are limited in all and by address, and with TLS the peer must
show a certificate of the same authority. A peer that is not admitted gets no byte, not even a refusal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address

from attrs import frozen

Network = IPv4Network | IPv6Network


@frozen
class AdmissionSettings:
    """Which peers are admitted, and how many connections of them."""

    allowed: tuple[Network, ...] = ()
    """trioha.haAllowedPeers: addresses and networks; empty admits all."""
    connections_max: int = 64
    """trioha.haConnectionsMax: open at a time, of all peers."""
    connections_per_peer_max: int = 8
    """trioha.haConnectionsPerPeer: open at a time, of one address."""


@frozen
class Refusal:
    """Why a peer is not admitted."""

    reason: str
    is_limit: bool = False
    """Whether a limit of connections is reached: the peer would be admitted if another connection ended."""
    is_peer_limit: bool = False
    """Whether that is the limit of the peer's own address."""


class Admission:
    """Counts open connections and decides about new ones."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self._settings = settings
        self._open: Counter[str] = Counter()

    def refusal(self, host: str) -> Refusal | None:
        """Why a peer at the IP address `host` is not admitted now; None if it is."""
        settings = self._settings
        if settings.allowed and not _is_in(host, settings.allowed):
            return Refusal("not in trioha.haAllowedPeers")
        if self._open[host] >= settings.connections_per_peer_max:
            return Refusal(
                f"{self._open[host]} connections of this peer are open (trioha.haConnectionsPerPeer)",
                is_limit=True,
                is_peer_limit=True,
            )
        if self._open.total() >= settings.connections_max:
            return Refusal(
                f"{settings.connections_max} connections are open (trioha.haConnectionsMax)",
                is_limit=True,
            )
        return None

    @contextmanager
    def slot(self, host: str) -> Iterator[None]:
        """Count a connection of `host` as open inside the `with`."""
        self._open[host] += 1
        try:
            yield
        finally:
            self._open[host] -= 1
            if not self._open[host]:
                del self._open[host]


def _is_in(host: str, networks: tuple[Network, ...]) -> bool:
    address = ip_address(host.split("%", 1)[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address.version == network.version and address in network for network in networks)


def identity_of(certificate: dict[str, object] | None) -> str | None:
    """The subject of a certificate: its common name, else its first DNS name; None without either."""
    if not certificate:
        return None
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    for parts in subject:
        for key, value in parts:
            if key == "commonName":
                return str(value)
    names = certificate.get("subjectAltName", ())
    assert isinstance(names, tuple)
    return next((str(value) for kind, value in names if kind == "DNS"), None)
