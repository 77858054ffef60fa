"""What settings that are valid one by one must not, or should not, say together.

A contradiction refuses the configuration; a doubt is a warning: such a configuration runs, but is probably
not the intended one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from attrs import frozen

from trioha.config.broker import SETTINGS, BrokerConfig, BrokerRole
from trioha.config.keys.auth import LOCAL_ACLS, LOCAL_USERS
from trioha.config.keys.ha import HaRole
from trioha.config.keys.security import ClientAuth, TlsMode
from trioha.config.keys.server import FRAME_BYTES_BESIDE_BODY, client_bytes_needed
from trioha.config.keys.store import FILE_END_BYTES_MIN, RECORD_BYTES_MIN
from trioha.config.values import PORT_MAX

RECORDED_BROKER_ID_MAX: Final = 32767
"""The brokerId is a signed 16-bit field in the events of a session."""

_WITHOUT_EFFECT: Final[dict[bool, tuple[str, ...]]] = {
    True: ("ha_start_from", "ha_gap_policy"),
    False: ("controller_addr", "async_learner", "sync_from_last_file", "ha_accept_cut", "hang_timeout"),
}
"""Settings that have no effect, by `enable_controller_mode`."""


@frozen
class Contradiction:
    """Settings that cannot be used together."""

    attributes: tuple[str, ...]
    """All that it follows from, with the one at whose place it is reported first. If the value of one of them
    cannot be parsed, the contradiction says nothing."""
    reason: str
    hint: str


def contradictions(config: BrokerConfig, given: Collection[str]) -> Iterator[Contradiction]:
    """All of them. `given`: attributes that have no default."""
    yield from _roles_by_controllers(config, given) if config.enable_controller_mode else _roles(config)
    yield from _security(config)
    yield from _users(config)
    yield from _ports(config)
    yield from _replicas(config, given)
    yield from _memory(config)
    yield from _mutual_tls(given)
    if config.record_dir is not None and config.broker_id > RECORDED_BROKER_ID_MAX:
        yield Contradiction(
            ("broker_id", "record_dir"),
            f"is {config.broker_id}, which a recorded session cannot hold",
            f"give at most {RECORDED_BROKER_ID_MAX} or leave out trioha.recordDir",
        )


def _roles(config: BrokerConfig) -> Iterator[Contradiction]:
    """Of role, id and master outside of controller mode."""
    of_role = ("broker_id", "broker_role", "enable_controller_mode")
    is_slave = config.broker_role is BrokerRole.SLAVE
    if config.broker_id < 0:
        yield Contradiction(
            of_role, f"is {config.broker_id}, but enableControllerMode is false", "give 0 or more"
        )
    elif is_slave and config.broker_id == 0:
        yield Contradiction(of_role, "is 0, which is the master's, but brokerRole is SLAVE", "give 1 or more")
    elif not is_slave and config.broker_id != 0:
        yield Contradiction(
            of_role,
            f"is {config.broker_id}, but brokerRole is {config.broker_role}",
            "a master has brokerId 0; a slave has brokerRole=SLAVE",
        )
    if is_slave and config.ha_master_address is None and not config.namesrv_addr:
        yield Contradiction(
            ("ha_master_address", "broker_role", "namesrv_addr"),
            "is missing, but brokerRole is SLAVE",
            "give HOST:PORT of the master's HA service, or namesrvAddr to learn it there",
        )


def _roles_by_controllers(config: BrokerConfig, given: Collection[str]) -> Iterator[Contradiction]:
    """Of controller mode, where the controllers give id and role."""
    if not config.controller_addr:
        yield Contradiction(
            ("controller_addr",),
            "is missing, but enableControllerMode is true",
            "give HOST:PORT of each controller, split by ;",
        )
    if not config.namesrv_addr:
        yield Contradiction(
            ("namesrv_addr",),
            "is missing, but enableControllerMode is true",
            "give the name servers: clients and slaves find the master there",
        )
    if "broker_id" in given and config.broker_id != -1:
        yield Contradiction(
            ("broker_id",),
            f"is {config.broker_id}, but with enableControllerMode the controllers give the id",
            "give -1 or leave it out",
        )
    if "broker_role" in given and config.broker_role is not BrokerRole.SLAVE:
        yield Contradiction(
            ("broker_role",),
            f"is {config.broker_role}, but with enableControllerMode the controllers give the role",
            "give SLAVE or leave it out",
        )
    for attribute in ("ha_master_address", "master_address"):
        if getattr(config, attribute) is not None:
            yield Contradiction(
                (attribute,), "names a master, but enableControllerMode is true", "leave it out"
            )
    if config.ha_role is HaRole.OBSERVER:
        yield Contradiction(
            ("ha_role",),
            "is observer, but enableControllerMode is true",
            "asyncLearner=true makes a copy that is never elected",
        )
    for attribute in ("broker_cluster_name", "broker_name"):
        if "#" in getattr(config, attribute):
            yield Contradiction(
                (attribute,), "has a #, which splits the fields of brokerIdentity", "give a name without it"
            )
    if config.broker_heartbeat_interval >= config.controller_heart_beat_timeout_mills:
        yield Contradiction(
            ("broker_heartbeat_interval", "controller_heart_beat_timeout_mills"),
            f"is {config.broker_heartbeat_interval}, not below controllerHeartBeatTimeoutMills="
            f"{config.controller_heart_beat_timeout_mills}: this node would count as dead",
            "lower it",
        )


def _security(config: BrokerConfig) -> Iterator[Contradiction]:
    """Of access control and of TLS for clients."""
    if config.acl_enable and config.acl_file is None:
        yield Contradiction(
            ("acl_file", "acl_enable"),
            "is missing, but aclEnable is true",
            "give the path of a plain_acl.yml",
        )
    for attribute, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
        if getattr(config, attribute) is not None and getattr(config, other) is None:
            yield Contradiction((other,), f"is missing beside {SETTINGS[attribute].key}", "give both")
    files = ("tls_server_cert_path", "tls_server_key_path")
    missing = [attribute for attribute in files if getattr(config, attribute) is None]
    is_enforcing = config.tls_server_mode is TlsMode.ENFORCING
    if len(missing) == 1:
        yield Contradiction(
            (missing[0], *files), "is missing, TLS needs a certificate and its key", "give both"
        )
    elif missing and is_enforcing:
        yield Contradiction(
            (missing[0], *files, "tls_server_mode"),
            "is missing, but tls.server.mode is enforcing",
            "give certificate and key",
        )
    if is_enforcing and config.with_name_server and not config.tls_enable:
        yield Contradiction(
            ("tls_enable", "tls_server_mode", "with_name_server"),
            "is false, but tls.server.mode is enforcing, also for the node's own name server",
            "give tls.enable=true",
        )
    if config.tls_client_auth_server and config.tls_client_trust_cert_path is None:
        yield Contradiction(
            ("tls_client_trust_cert_path", "tls_client_auth_server"),
            "is missing, but tls.client.authServer is true",
            "give the authorities of the name servers' certificates",
        )
    of_clients = ("tls_server_trust_cert_path", "tls_server_auth_client")
    if config.tls_server_auth_client and config.tls_server_trust_cert_path is None:
        yield Contradiction(
            of_clients,
            "is missing, but tls.server.authClient is true",
            "give the authorities of the clients' certificates",
        )
    elif config.tls_server_need_client_auth is ClientAuth.REQUIRE and not config.tls_server_auth_client:
        yield Contradiction(
            ("tls_server_need_client_auth", *of_clients),
            "is require, but certificates of clients are not verified",
            "give tls.server.authClient=true and tls.server.trustCertPath",
        )


def _users(config: BrokerConfig) -> Iterator[Contradiction]:
    """Of users and access control lists of RocketMQ 5."""
    needed = {
        "authentication_metadata_provider": LOCAL_USERS,
        "authorization_metadata_provider": LOCAL_ACLS,
    }
    switches = {
        "authentication_enabled": ("authentication_metadata_provider",),
        "authorization_enabled": tuple(needed),
        "migrate_auth_from_v1": tuple(needed),
    }
    missing: dict[str, str] = {}
    for switch, providers in switches.items():
        for provider in providers:
            if getattr(config, switch) and getattr(config, provider) is None:
                missing.setdefault(provider, switch)
    for provider, switch in missing.items():
        yield Contradiction(
            (provider, switch),
            f"is missing, but {SETTINGS[switch].key} is true",
            f"give {needed[provider]}",
        )
    for switch in ("authentication_enabled", "authorization_enabled"):
        if config.acl_enable and getattr(config, switch):
            yield Contradiction(
                (switch, "acl_enable"),
                "is true, and so is aclEnable: a request is checked by one of both",
                "leave out aclEnable; migrateAuthFromV1Enabled=true makes users of the accounts",
            )
            break
    if config.migrate_auth_from_v1 and config.rocketmq_home is None:
        yield Contradiction(
            ("rocketmq_home", "migrate_auth_from_v1"),
            "is missing, but migrateAuthFromV1Enabled is true",
            "give the folder whose conf has plain_acl.yml",
        )
    inner = config.inner_client_credentials
    if inner is not None and config.access_key is not None and inner.name != config.access_key:
        yield Contradiction(
            ("inner_client_credentials", "access_key"),
            "names another account than trioha.accessKey",
            "give one of both",
        )


def _ports(config: BrokerConfig) -> Iterator[Contradiction]:
    ports = ("ha_listen_port", "listen_port")
    if config.ha_listen_port > PORT_MAX:
        yield Contradiction(
            ("listen_port", "ha_listen_port"),
            "leaves no port for haListenPort, which is listenPort + 1 by default",
            "give haListenPort",
        )
    elif config.ha_listen_port == config.listen_port != 0:
        yield Contradiction(ports, f"is {config.ha_listen_port}, and so is listenPort", "give another port")
    elif config.ha_listen_port == config.vip_port:
        yield Contradiction(
            ports,
            f"is {config.ha_listen_port}, the second port for clients, listenPort - 2",
            "give another port",
        )
    others = {
        config.listen_port: "listenPort",
        config.ha_listen_port: "haListenPort",
        config.vip_port: "the second port for clients, listenPort - 2",
    }
    if config.metrics_port and (other := others.get(config.metrics_port)) is not None:
        yield Contradiction(
            ("metrics_port", *ports), f"is {config.metrics_port}, and so is {other}", "give another port"
        )


def _replicas(config: BrokerConfig, given: Collection[str]) -> Iterator[Contradiction]:
    if (
        "in_sync_replicas" in given
        and "total_replicas" in given
        and config.in_sync_replicas > config.total_replicas
    ):
        yield Contradiction(
            ("in_sync_replicas", "total_replicas"),
            f"is {config.in_sync_replicas}, but totalReplicas is only {config.total_replicas}",
            "raise totalReplicas",
        )
    # In controller mode it is the least size of the sync-state set, whatever a put waits for.
    if not config.enable_controller_mode and config.min_in_sync_replicas > max(
        config.in_sync_replicas, 2 if config.broker_role is BrokerRole.SYNC_MASTER else 1
    ):
        yield Contradiction(
            ("min_in_sync_replicas", "in_sync_replicas"),
            f"is {config.min_in_sync_replicas}, but inSyncReplicas is only {config.in_sync_replicas}",
            "raise inSyncReplicas",
        )


def _memory(config: BrokerConfig) -> Iterator[Contradiction]:
    """Of memory limits that are too small for another setting."""
    frame_bytes_needed = config.max_message_size + FRAME_BYTES_BESIDE_BODY
    client_bytes_min = client_bytes_needed(config.frame_bytes_max)
    if config.frame_bytes_max < frame_bytes_needed:
        yield Contradiction(
            ("frame_bytes_max", "max_message_size"),
            f"is {config.frame_bytes_max}, too little for a message of maxMessageSize="
            f"{config.max_message_size}",
            f"give at least {frame_bytes_needed} or lower maxMessageSize",
        )
    elif config.client_bytes_max < client_bytes_min:
        yield Contradiction(
            ("client_bytes_max", "frame_bytes_max", "max_message_size"),
            f"is {config.client_bytes_max}, too little for trioha.frameBytesMax={config.frame_bytes_max}",
            f"give at least {client_bytes_min} or lower trioha.frameBytesMax",
        )


def _mutual_tls(given: Collection[str]) -> Iterator[Contradiction]:
    """Of the files of the HA port's TLS."""
    files = ("ha_tls_cert", "ha_tls_key", "ha_tls_ca")
    missing = [attribute for attribute in files if attribute not in given]
    if 0 < len(missing) < len(files):
        yield Contradiction((missing[0],), "is missing, mutual TLS needs all three files", "give it, too")


def doubts(config: BrokerConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Settings that are unlikely to be intended: a given attribute, and the warning at its place."""
    if config.broker_role is BrokerRole.SYNC_MASTER:
        if "in_sync_replicas" in given and config.in_sync_replicas == 1:
            yield (
                "in_sync_replicas",
                "a SYNC_MASTER still waits for one slave; to wait for none, set brokerRole=ASYNC_MASTER",
            )
        if "total_replicas" in given and config.total_replicas == 1:
            yield (
                "total_replicas",
                "a SYNC_MASTER needs a slave: without one every put is SLAVE_NOT_AVAILABLE",
            )
    if config.consume_replicated_only and config.broker_role is BrokerRole.ASYNC_MASTER:
        yield ("consume_replicated_only", "has no effect: an ASYNC_MASTER waits for no slave")
    if config.archive_url is None:
        for attribute in ("archive_interval", "archive_keep", "archive_before_delete"):
            if attribute in given:
                yield (attribute, "has no effect without trioha.archiveUrl")
    for attribute in _WITHOUT_EFFECT[config.enable_controller_mode]:
        if attribute in given and getattr(config, attribute):
            without = "with" if config.enable_controller_mode else "without"
            yield (attribute, f"has no effect {without} enableControllerMode=true")
    if config.broker_role is not BrokerRole.SLAVE and config.ha_master_address is not None:
        yield ("ha_master_address", f"is not used by a {config.broker_role}")
    body_bytes_max = config.mapped_file_size_commit_log - RECORD_BYTES_MIN - FILE_END_BYTES_MIN
    if config.max_message_size > body_bytes_max:
        yield (
            "max_message_size" if "max_message_size" in given else "mapped_file_size_commit_log",
            (
                f"a file of {config.mapped_file_size_commit_log} bytes has no room for maxMessageSize="
                f"{config.max_message_size}: bodies beyond {body_bytes_max} bytes will be MESSAGE_ILLEGAL"
            ),
        )
    for per_peer, in_all in (
        ("connections_per_peer", "connections_max"),
        ("ha_connections_per_peer", "ha_connections_max"),
    ):
        if per_peer in given and getattr(config, per_peer) > getattr(config, in_all):
            yield (
                per_peer,
                f"is above {SETTINGS[in_all].key}={getattr(config, in_all)}: one address may take all places",
            )
    if config.authorization_enabled and not config.authentication_enabled:
        yield (
            "authorization_enabled",
            "authenticationEnabled is false: whoever names a user in a request is believed to be that user",
        )
    if config.tls_server_auth_client and config.tls_server_need_client_auth is ClientAuth.NONE:
        yield (
            "tls_server_auth_client",
            "clients are not asked for certificates: tls.server.need.client.auth is none",
        )
    if config.ha_housekeeping_interval <= config.ha_send_heartbeat_interval:
        is_given = "ha_housekeeping_interval" in given
        yield (
            "ha_housekeeping_interval" if is_given else "ha_send_heartbeat_interval",
            (
                f"haHousekeepingInterval={config.ha_housekeeping_interval} is not above "
                f"haSendHeartbeatInterval={config.ha_send_heartbeat_interval}: "
                "idle connections will be closed again and again"
            ),
        )
