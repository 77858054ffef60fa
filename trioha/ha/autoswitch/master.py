"""The master's side of replication in controller mode: serves slaves by RocketMQ's AutoSwitch HA protocol.

Theory of operation. Listeners, admission, TLS and probes are those of `HaMaster`; the connections have
handshakes and epochs (`ha.autoswitch.connection`), and a replica is its broker id. Each id has one
connection. A newer connection takes the place of an older one (REPLACED): a slave that was cut off connects
again before the silence of its old connection is noticed, and must not wait for that. With TLS the id belongs
to the certificate of its open connection; a peer with another certificate, or with the master's own id, is
refused.

A master lasts for one term of its role: its connections end with it, and what it sent is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import trio

from trioha.ha.autoswitch.connection import AutoSwitchHaConnection
from trioha.ha.autoswitch.frames import SlaveHandshake
from trioha.ha.connection import HaConnection, PeerIdentity
from trioha.ha.master import HaMaster
from trioha.ha.set_commit import SetReplicas
from trioha.recording.events import CloseReason, HaState
from trioha.store.epochs import EpochTable

log = structlog.get_logger(__name__)


class AutoSwitchMaster(HaMaster):
    """Serves the log to slaves in controller mode."""

    def __init__(
        self,
        *,
        replicas: SetReplicas,
        epochs: Callable[[], EpochTable],
        is_master: bool = True,
        **options: Any,
    ) -> None:
        """`epochs` returns the log's epochs as of now; the last one is the master's. `options` are those of
        `HaMaster`.

        Without `is_master` every handshake is refused: a slave, or a node without a role yet, has no epoch to
        serve, and a peer that dials it by mistake would cut its log by a list of epochs that is not the
        master's. RocketMQ's slaves answer.
        """
        super().__init__(replicas=replicas, **options)
        self._set_replicas = replicas
        self._epochs = epochs
        self._is_master = is_master

    def _connection(
        self, stream: trio.abc.Stream, *, peer: PeerIdentity, on_state: Callable[[HaState], None]
    ) -> HaConnection:
        return AutoSwitchHaConnection(
            stream,
            peer=peer,
            commit_log=self._log,
            replicas=self._set_replicas,
            settings=self._settings,
            sink=self._sink,
            on_state=on_state,
            epochs=self._epochs,
            admit=self._admit,
        )

    def _admit(self, connection: AutoSwitchHaConnection, handshake: SlaveHandshake) -> CloseReason | None:
        """Why the handshake is refused; None if not, then `connection` is the only one of its broker id."""
        broker_id, peer = handshake.broker_id, connection.peer
        if not self._is_master:
            log.warning(f"slave[{peer.address}] refused: this node is not the master", broker_id=broker_id)
            return CloseReason.NOT_ALLOWED
        if broker_id == self._set_replicas.set.own_id:
            log.warning(f"slave[{peer.address}] refused: it has this master's broker id {broker_id}")
            return CloseReason.NOT_ALLOWED
        for other in self._connections.values():
            if (
                other is connection
                or not isinstance(other, AutoSwitchHaConnection)
                or other.handshake is None
                or other.handshake.broker_id != broker_id
                or not other.progress.is_open
            ):
                continue
            if peer.certificate != other.peer.certificate:
                log.warning(
                    f"slave[{peer.address}] refused: broker {broker_id} has another certificate",
                    certificate=peer.certificate,
                    connected=other.peer.certificate,
                )
                return CloseReason.NOT_ALLOWED
            self._set_replicas.ended(other.peer.connection_id, sent_offset=other.progress.sent_offset)
            other.end(CloseReason.REPLACED)
        return None
