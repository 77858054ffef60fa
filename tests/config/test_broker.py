"""A broker.conf is read as by RocketMQ."""

import ast
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.config.loading import load, refusals
from trioha.archive.objects import SCHEMES
from trioha.config import broker, values
from trioha.config.broker import BrokerConfig, BrokerRole, LogFormat
from trioha.config.keys.auth import LOCAL_ACLS, LOCAL_USERS
from trioha.config.keys.ha import AckMode, DistinctBy, GapPolicy, HaRole
from trioha.config.keys.metadata import OffsetRegression
from trioha.config.keys.security import ClientAuth, TlsMode
from trioha.config.keys.store import FlushDiskType
from trioha.config.loading import LoadedConfig, load_config
from trioha.config.rocketmq_keys import ROCKETMQ_KEYS
from trioha.config.values import Account
from trioha.errors import ConfigError
from trioha.host_port import HINT

ROOT = Path(__file__).parents[2]


STORE = Path("/home/operator/store")
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
AUTH = "org.apache.rocketmq.auth"
AUTHENTICATOR = f"{AUTH}.authentication.provider.DefaultAuthenticationProvider"
AUTHORIZER = f"{AUTH}.authorization.provider.DefaultAuthorizationProvider"
OF_HOST = object()
"""A default that depends on the host."""
SETTINGS: dict[str, tuple[str, Any, Any]] = {
    "broker_cluster_name": ("brokerClusterName=C", "DefaultCluster", "C"),
    "broker_name": ("brokerName : b", OF_HOST, "b"),
    "broker_id": ("brokerId 3", 0, 3),
    "broker_role": ("brokerRole=SLAVE", BrokerRole.ASYNC_MASTER, BrokerRole.SLAVE),
    "broker_ip1": ("brokerIP1=10.0.0.1", OF_HOST, "10.0.0.1"),
    "broker_ip2": ("brokerIP2=ha.example.org", OF_HOST, "ha.example.org"),
    "listen_port": ("listenPort=30911", 10911, 30911),
    "ha_listen_port": ("haListenPort=30000", 10912, 30000),
    "ha_master_address": ("haMasterAddress=[::1]:30912", None, "[::1]:30912"),
    "with_name_server": ("trioha.withNamesrv=true", False, True),
    "namesrv_addr": ("namesrvAddr=ns:9876;[::1]:9877", (), ("ns:9876", "[::1]:9877")),
    "register_name_server_period": ("registerNameServerPeriod=10000", 30000, 10000),
    "register_broker_timeout_mills": ("registerBrokerTimeoutMills=6000", 24000, 6000),
    "store_path_root_dir": ("storePathRootDir=/data/s", STORE, Path("/data/s")),
    "store_path_commit_log": ("storePathCommitLog=/log/s", STORE / "commitlog", Path("/log/s")),
    "mapped_file_size_commit_log": ("mappedFileSizeCommitLog=65536", 1073741824, 65536),
    "mapped_file_size_consume_queue": ("mappedFileSizeConsumeQueue=400", 6000000, 400),
    "mapped_file_size_batch_consume_queue": ("mapperFileSizeBatchConsumeQueue=920", 13800000, 920),
    "message_index_enable": ("messageIndexEnable=false", True, False),
    "max_hash_slot_num": ("maxHashSlotNum=53", 5000000, 53),
    "max_index_num": ("maxIndexNum=100", 20000000, 100),
    "enable_lmq": ("enableLmq=true", False, True),
    "enable_multi_dispatch": ("enableMultiDispatch=true", False, True),
    "message_delay_level": ("messageDelayLevel=1s 2h", DELAY_LEVELS, "1s 2h"),
    "max_message_size": ("maxMessageSize=1024", 4194304, 1024),
    "flush_disk_type": ("flushDiskType=SYNC_FLUSH", FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH),
    "flush_interval_commit_log": ("flushIntervalCommitLog=10", 500, 10),
    "ha_send_heartbeat_interval": ("haSendHeartbeatInterval=100", 5000, 100),
    "ha_housekeeping_interval": ("haHousekeepingInterval=400", 20000, 400),
    "ha_transfer_batch_size": ("haTransferBatchSize=4194292", 32768, 4194292),
    "ha_max_gap_not_in_sync": ("haMaxGapNotInSync=9223372036854775807", 268435456, 9223372036854775807),
    "ha_max_time_slave_not_catchup": ("haMaxTimeSlaveNotCatchup=7000", 15000, 7000),
    "sync_flush_timeout": ("syncFlushTimeout=6", 5000, 6),
    "slave_timeout": ("slaveTimeout=7", 3000, 7),
    "ha_flow_control_enable": ("haFlowControlEnable=true", False, True),
    "max_ha_transfer_byte_in_second": ("maxHaTransferByteInSecond=5000", 104857600, 5000),
    "file_reserved_time": ("fileReservedTime=1", 72, 1),
    "delete_when": ("deleteWhen=03; 15", frozenset({4}), frozenset({3, 15})),
    "disk_max_used_space_ratio": ("diskMaxUsedSpaceRatio=60", 75, 60),
    "disk_space_clean_forcibly_ratio": ("diskSpaceCleanForciblyRatio=70", 85, 70),
    "disk_space_warning_level_ratio": ("diskSpaceWarningLevelRatio=80", 90, 80),
    "clean_file_forcibly_enable": ("cleanFileForciblyEnable=false", True, False),
    "clean_resource_interval": ("cleanResourceInterval=500", 10000, 500),
    "in_sync_replicas": ("inSyncReplicas=2", 1, 2),
    "min_in_sync_replicas": ("minInSyncReplicas=2", 1, 2),
    "enable_auto_in_sync_replicas": ("enableAutoInSyncReplicas=true", False, True),
    "all_ack_in_sync_state_set": ("allAckInSyncStateSet=True", False, True),
    "total_replicas": ("totalReplicas=3", 1, 3),
    "record_dir": ("trioha.recordDir=/rec", None, Path("/rec")),
    "archive_url": ("trioha.archiveUrl=s3://backups/broker-b", None, "s3://backups/broker-b"),
    "archive_interval": ("trioha.archiveInterval=2000", 10_000, 2000),
    "archive_keep": ("trioha.archiveKeep=30d", None, "30d"),
    "archive_before_delete": ("trioha.archiveBeforeDelete=true", False, True),
    "bind_address": ("trioha.bindAddress=127.0.0.1", "0.0.0.0", "127.0.0.1"),
    "ha_distinct_by": ("trioha.haDistinctBy=connection", DistinctBy.ADDRESS, DistinctBy.CONNECTION),
    "ha_transfer_batch_max": ("trioha.haTransferBatchMax=2097152", 1048576, 2097152),
    "busy_poll": ("trioha.busyPoll=50", 800, 50),
    "ha_start_from": ("trioha.haStartFrom=1073741824", None, 1073741824),
    "ha_ack_mode": ("trioha.haAckMode=flushed", AckMode.WRITTEN, AckMode.FLUSHED),
    "ha_role": ("trioha.haRole=observer", HaRole.REPLICA, HaRole.OBSERVER),
    "ha_gap_policy": ("trioha.haGapPolicy=resync", GapPolicy.FAIL, GapPolicy.RESYNC),
    "ha_tail_check": ("trioha.haTailCheck=0", 65536, 0),
    "ha_accept_cut": ("", None, None),
    "hang_timeout": ("", 15_000, 15_000),
    "ha_allowed_peers": (
        "trioha.haAllowedPeers=10.0.0.7, 10.1.0.0/16,::1",
        (),
        (ip_network("10.0.0.7"), ip_network("10.1.0.0/16"), ip_network("::1")),
    ),
    "queues_max": ("trioha.queuesMax=77", 100_000, 77),
    "auto_create_topic_enable": ("autoCreateTopicEnable=false", True, False),
    "default_topic_queue_nums": ("defaultTopicQueueNums=5", 8, 5),
    "auto_create_subscription_group": ("autoCreateSubscriptionGroup=false", True, False),
    "broker_permission": ("brokerPermission=4", 6, 4),
    "flush_consumer_offset_interval": ("flushConsumerOffsetInterval=101", 5000, 101),
    "flush_delay_offset_interval": ("flushDelayOffsetInterval=102", 10_000, 102),
    "timer_wheel_enable": ("timerWheelEnable=false", True, False),
    "timer_precision_ms": ("timerPrecisionMs=100", 1000, 100),
    "timer_max_delay_sec": ("timerMaxDelaySec=60", 259_200, 60),
    "timer_roll_window_slot": ("timerRollWindowSlot=12", 172_800, 12),
    "timer_congest_num_each_slot": ("timerCongestNumEachSlot=7", 2**31 - 1, 7),
    "recall_message_enable": ("recallMessageEnable=true", False, True),
    "revive_queue_num": ("reviveQueueNum=3", 8, 3),
    "revive_interval": ("reviveInterval=900", 1000, 900),
    "enable_retry_topic_v2": ("enableRetryTopicV2=true", False, True),
    "retrieve_message_from_pop_retry_topic_v1": ("retrieveMessageFromPopRetryTopicV1=false", True, False),
    "pop_from_retry_probability": ("popFromRetryProbability=21", 20, 21),
    "pop_response_return_actual_retry_topic": ("popResponseReturnActualRetryTopic=true", False, True),
    "init_pop_offset_by_check_msg_in_mem": ("initPopOffsetByCheckMsgInMem=false", True, False),
    "enable_pop_message_threshold": ("enablePopMessageThreshold=true", False, True),
    "pop_inflight_message_threshold": ("popInflightMessageThreshold=30", 10_000, 30),
    "pop_polling_size": ("popPollingSize=31", 1024, 31),
    "max_pop_polling_size": ("maxPopPollingSize=32", 100_000, 32),
    "pop_polling_map_size": ("popPollingMapSize=33", 100_000, 33),
    "long_polling_enable": ("longPollingEnable=false", True, False),
    "short_polling_time_mills": ("shortPollingTimeMills=103", 1000, 103),
    "max_transfer_count_on_message_in_memory": ("maxTransferCountOnMessageInMemory=104", 32, 104),
    "max_transfer_bytes_on_message_in_memory": ("maxTransferBytesOnMessageInMemory=105", 262144, 105),
    "access_message_in_memory_max_ratio": ("accessMessageInMemoryMaxRatio=33", 40, 33),
    "slave_read_enable": ("slaveReadEnable=true", False, True),
    "consume_replicated_only": ("trioha.consumeReplicatedOnly=true", False, True),
    "master_address": ("trioha.masterAddress=10.0.0.1:10911", None, "10.0.0.1:10911"),
    "metadata_sync_first": ("trioha.metadataSyncFirst=2000", 3000, 2000),
    "metadata_sync_period": ("trioha.metadataSyncPeriod=7000", 10_000, 7000),
    "offset_regression": ("trioha.offsetRegression=accept", OffsetRegression.KEEP, OffsetRegression.ACCEPT),
    "metadata_history_bytes": ("trioha.metadataHistoryBytes=0", 67_108_864, 0),
    "metadata_history_interval": ("trioha.metadataHistoryInterval=1000", 60_000, 1000),
    "notify_consumer_ids_changed_enable": ("notifyConsumerIdsChangedEnable=false", True, False),
    "transaction_time_out": ("transactionTimeOut=61", 6000, 61),
    "transaction_check_interval": ("transactionCheckInterval=62", 30_000, 62),
    "transaction_check_max": ("transactionCheckMax=63", 15, 63),
    "reject_transaction_message": ("rejectTransactionMessage=true", False, True),
    "transaction_op_batch_interval": ("transactionOpBatchInterval=64", 0, 64),
    "transaction_op_msg_max_size": ("transactionOpMsgMaxSize=65", 4096, 65),
    "open_transactions_max": ("trioha.openTransactionsMax=66", 100_000, 66),
    "topics_max": ("trioha.topicsMax=71", 10_000, 71),
    "groups_max": ("trioha.groupsMax=72", 10_000, 72),
    "consumer_offsets_max": ("trioha.consumerOffsetsMax=73", 500_000, 73),
    "consumers_max": ("trioha.consumersMax=74", 10_000, 74),
    "long_polls_max": ("trioha.longPollsMax=75", 50_000, 75),
    "queue_locks_max": ("trioha.queueLocksMax=76", 100_000, 76),
    "statistics_max": ("trioha.statisticsMax=77", 20_000, 77),
    "connections_max": ("trioha.connectionsMax=9", 1024, 9),
    "connections_per_peer": ("trioha.connectionsPerPeer=4", 512, 4),
    "requests_in_flight_max": ("trioha.requestsInFlightMax=11", 4096, 11),
    "frame_bytes_max": ("trioha.frameBytesMax=300000", 16777216, 300000),
    "client_bytes_max": ("trioha.clientBytesMax=4000000", 134217728, 4000000),
    "client_idle_timeout": ("trioha.clientIdleTimeout=5000", 120000, 5000),
    "ha_connections_max": ("trioha.haConnectionsMax=5", 64, 5),
    "ha_connections_per_peer": ("trioha.haConnectionsPerPeer=2", 8, 2),
    "ha_first_report_timeout": ("trioha.haFirstReportTimeout=7000", 15000, 7000),
    "ha_tls_cert": ("trioha.haTlsCert=/tls/node.pem", None, Path("/tls/node.pem")),
    "ha_tls_key": ("trioha.haTlsKey=/tls/node.key", None, Path("/tls/node.key")),
    "ha_tls_ca": ("trioha.haTlsCa=/tls/ca.pem", None, Path("/tls/ca.pem")),
    # Beside authenticationEnabled it cannot be true.
    "acl_enable": ("aclEnable=false", False, False),
    "rocketmq_home": ("rocketmqHome=/rocketmq", None, Path("/rocketmq")),
    "acl_file": ("trioha.aclFile=/acl/rules.yml", None, Path("/acl/rules.yml")),
    "access_key": ("trioha.accessKey=node-account", None, "node-account"),
    "secret_key": ("trioha.secretKey=node-secret", None, "node-secret"),
    "authentication_enabled": ("authenticationEnabled=true", False, True),
    "authorization_enabled": ("authorizationEnabled=true", False, True),
    "authentication_provider": (f"authenticationProvider={AUTHENTICATOR}", AUTHENTICATOR, AUTHENTICATOR),
    "authorization_provider": (f"authorizationProvider={AUTHORIZER}", AUTHORIZER, AUTHORIZER),
    "authentication_metadata_provider": (
        f"authenticationMetadataProvider={LOCAL_USERS}",
        None,
        LOCAL_USERS,
    ),
    "authorization_metadata_provider": (f"authorizationMetadataProvider={LOCAL_ACLS}", None, LOCAL_ACLS),
    "authentication_strategy": (
        f"authenticationStrategy={AUTH}.authentication.strategy.StatefulAuthenticationStrategy",
        f"{AUTH}.authentication.strategy.StatelessAuthenticationStrategy",
        f"{AUTH}.authentication.strategy.StatefulAuthenticationStrategy",
    ),
    "authorization_strategy": (
        f"authorizationStrategy={AUTH}.authorization.strategy.StatefulAuthorizationStrategy",
        f"{AUTH}.authorization.strategy.StatelessAuthorizationStrategy",
        f"{AUTH}.authorization.strategy.StatefulAuthorizationStrategy",
    ),
    "authentication_whitelist": ("authenticationWhitelist=34, 310", (), (34, 310)),
    "authorization_whitelist": ("authorizationWhitelist=35", (), (35,)),
    "init_authentication_user": (
        'initAuthenticationUser={"username":"admin","password":"first-secret"}',
        None,
        Account("admin", "first-secret"),
    ),
    "inner_client_credentials": (
        'innerClientAuthenticationCredentials={"accessKey":"node-account","secretKey":"inner-secret"}',
        None,
        Account("node-account", "inner-secret"),
    ),
    "migrate_auth_from_v1": ("migrateAuthFromV1Enabled=true", False, True),
    "tls_server_mode": ("tls.server.mode=enforcing", TlsMode.PERMISSIVE, TlsMode.ENFORCING),
    "tls_server_cert_path": ("tls.server.certPath=/tls/server.pem", None, Path("/tls/server.pem")),
    "tls_server_key_path": ("tls.server.keyPath=/tls/server.key", None, Path("/tls/server.key")),
    "tls_server_key_password": ("tls.server.keyPassword=pass word", None, "pass word"),
    "tls_server_trust_cert_path": (
        "tls.server.trustCertPath=/tls/clients.pem",
        None,
        Path("/tls/clients.pem"),
    ),
    "tls_server_auth_client": ("tls.server.authClient=true", False, True),
    "tls_server_need_client_auth": (
        "tls.server.need.client.auth=optional",
        ClientAuth.NONE,
        ClientAuth.OPTIONAL,
    ),
    "tls_enable": ("tls.enable=true", False, True),
    "tls_client_auth_server": ("tls.client.authServer=true", False, True),
    "tls_client_trust_cert_path": (
        "tls.client.trustCertPath=/tls/servers.pem",
        None,
        Path("/tls/servers.pem"),
    ),
    "tls_config_file": ("", None, None),
    "metrics_port": ("trioha.metricsPort=9108", None, 9108),
    "metrics_bind_address": ("trioha.metricsBindAddress=10.0.0.9", "0.0.0.0", "10.0.0.9"),
    "metrics_topics": ("trioha.metricsTopics=12", 50, 12),
    "log_format": ("trioha.logFormat=json", LogFormat.CONSOLE, LogFormat.JSON),
    "enable_controller_mode": ("enableControllerMode=false", False, False),
    "controller_addr": ("controllerAddr=", (), ()),
    "sync_broker_metadata_period": ("syncBrokerMetadataPeriod=4000", 5000, 4000),
    "sync_controller_metadata_period": ("syncControllerMetadataPeriod=9000", 10_000, 9000),
    "check_sync_state_set_period": ("checkSyncStateSetPeriod=3000", 5000, 3000),
    "controller_heart_beat_timeout_mills": ("controllerHeartBeatTimeoutMills=8000", 10_000, 8000),
    "broker_heartbeat_interval": ("brokerHeartbeatInterval=500", 1000, 500),
    "broker_election_priority": ("brokerElectionPriority=7", 2147483647, 7),
    "async_learner": ("asyncLearner=false", False, False),
    "sync_from_last_file": ("syncFromLastFile=false", False, False),
    "store_path_epoch_file": (
        "storePathEpochFile=/e/epochs",
        STORE / "epochFileCheckpoint",
        Path("/e/epochs"),
    ),
    "store_path_broker_identity": (
        "storePathBrokerIdentity=/e/identity",
        STORE / "brokerIdentity",
        Path("/e/identity"),
    ),
}
"""By attribute: its line in a full file, its default, and what the line gives."""


def test_an_empty_file_gives_rocketmqs_defaults(conf, monkeypatch):
    monkeypatch.setenv("HOME", "/home/operator")
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    config = load(conf, "").config
    defaults = {name: default for name, (_, default, _) in SETTINGS.items() if default is not OF_HOST}
    assert attrs.asdict(config, filter=lambda field, _: field.name in defaults) == defaults
    assert config.broker_name
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", config.broker_ip1)
    assert config.broker_ip2 == config.broker_ip1


def test_every_key_of_a_full_file_reaches_its_attribute(conf):
    loaded = load(conf, "\n  ".join(line for line, _, _ in SETTINGS.values()))
    assert SETTINGS.keys() == broker.SETTINGS.keys()
    given = {name: value for name, (_, _, value) in SETTINGS.items()}
    assert loaded == LoadedConfig(BrokerConfig(**given), ())
    assert loaded.config.ha_master_endpoint == ("::1", 30912)
    assert loaded.config.archive_keep_ms == 30 * 86_400_000


def test_overrides_replace_values_of_the_file_and_earlier_overrides(conf):
    config = load(conf, "slaveTimeout=1\nlistenPort=5\n", "slaveTimeout = 2 ", "slaveTimeout=3").config
    assert (config.slave_timeout, config.listen_port) == (3, 5)


def test_the_ha_port_follows_the_listen_port(conf):
    for text, ports in (
        ("listenPort=20000", (20000, 20001)),
        ("listenPort=0", (0, 0)),
        ("listenPort=20000\nhaListenPort=0", (20000, 0)),
        ("listenPort=0\nhaListenPort=7", (0, 7)),
        ("listenPort=65535\nhaListenPort=65534", (65535, 65534)),
    ):
        config = load(conf, text).config
        assert (config.listen_port, config.ha_listen_port) == ports


def test_a_sync_master_needs_at_least_one_ack(conf):
    for role, in_sync_replicas, acks in (
        ("ASYNC_MASTER", 3, 0), ("SYNC_MASTER", 1, 1), ("SYNC_MASTER", 2, 1), ("SYNC_MASTER", 3, 2),
    ):  # fmt: skip
        config = load(conf, f"brokerRole={role}\ninSyncReplicas={in_sync_replicas}").config
        assert config.slave_acks_needed == acks


def test_the_old_and_the_new_name_of_a_setting_are_one_setting(conf):
    assert load(conf, "haSlaveFallbehindMax=77").config.ha_max_gap_not_in_sync == 77
    assert load(conf, "haMaxGapNotInSync=77\nhaSlaveFallbehindMax=77").config.ha_max_gap_not_in_sync == 77
    assert load(conf, "haMaxGapNotInSync=1", "haSlaveFallbehindMax=2").config.ha_max_gap_not_in_sync == 2
    assert load(conf, "bindAddress=127.0.0.1").config.bind_address == "127.0.0.1"


def test_blanks_around_values_are_ignored(conf):
    assert load(conf, "slaveTimeout = 12 \t\nbrokerRole=SYNC_MASTER  ").config.slave_timeout == 12


def test_only_a_leading_home_is_special_in_a_path_and_others_are_relative_to_the_working_directory(
    conf, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", "/home/op")
    monkeypatch.chdir(tmp_path)
    for given, path in (
        ("~/s", "/home/op/s"),
        ("~", "/home/op"),
        ("$HOME/s", "/home/op/s"),
        ("${HOME}/s", "/home/op/s"),
        ("/a/~/$HOME", "/a/~/$HOME"),
        ("/a/$USER", "/a/$USER"),
        *((given, tmp_path / given) for given in ("~other/s", "$HOMER/s", "s")),
    ):
        config = load(conf, f"storePathRootDir={given}").config
        assert config.store_path_root_dir == Path(path)
        assert config.store_path_commit_log == Path(path) / "commitlog"


def test_an_empty_optional_value_means_none(conf):
    config = load(conf, "haMasterAddress=\ntrioha.recordDir=\n").config
    assert config.ha_master_address is None
    assert config.record_dir is None


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    for path, reason in [
        (tmp_path / "none.conf", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ]:
        with pytest.raises(ConfigError) as refused:
            load_config(path)
        assert str(refused.value) == f"{path}: cannot be read: {reason}; give the path of a broker.conf"


def test_a_file_that_is_too_large_is_refused_without_being_read(conf):
    with conf.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match=r"is larger than 1048576 bytes: not a broker\.conf"):
        load_config(conf)


def test_every_key_without_the_trioha_prefix_is_a_key_of_rocketmq():
    for setting in broker.SETTINGS.values():
        for key in (setting.key, *setting.aliases):
            assert key in ROCKETMQ_KEYS or key.startswith("trioha."), key


def test_each_setting_is_read_by_a_part_of_the_node():
    """A key that is accepted changes something; one that has no effect yet is named in a warning instead."""
    read = {
        node.attr
        for path in (ROOT / "trioha").rglob("*.py")
        if {"config", "doctor", "cli"}.isdisjoint(path.parts)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    unread = {setting.name for setting in attrs.fields(BrokerConfig)} - read
    # Other settings are made from them, or checked against them.
    made_from = {"archive_keep", "tls_config_file", "total_replicas"}
    # Classes: what trioha does is what RocketMQ's own do, and any other is refused.
    classes = {
        "authentication_provider",
        "authentication_strategy",
        "authorization_provider",
        "authorization_strategy",
    }
    assert unread == made_from | classes


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_the_configuration_that_a_real_broker_answers_is_accepted(conf, version):
    """The body of a real GET_BROKER_CONFIG response is a broker.conf of that broker."""
    text = (ROOT / f"tests/config/vectors/broker-{version}.properties").read_text()
    loaded = load(conf, text)
    assert loaded.config.broker_role is BrokerRole.SYNC_MASTER
    assert loaded.config.broker_cluster_name == "SpecCluster"
    assert loaded.config.mapped_file_size_commit_log == 16777216
    (unused,) = [warning for warning in loaded.warnings if "not used by trioha yet" in warning]
    assert "compressedRegister" in unused
    assert "mappedFileSizeCommitLog" not in unused


def test_keys_that_came_with_5_4_and_5_5_are_accepted(conf):
    loaded = load(conf, "enableSplitMetadata=true\npersistConsumerOffsetIncrementally=false\n")
    (unused,) = loaded.warnings
    assert "enableSplitMetadata" in unused
    assert "persistConsumerOffsetIncrementally" in unused


def test_default_memory_limits_fit_the_largest_message(conf):
    for text, limits in (
        ("maxMessageSize=1000000", (16777216, 134217728)),
        ("maxMessageSize=20000000", (20262144, 134217728)),
        ("maxMessageSize=100000000", (100262144, 601638400)),
        ("maxMessageSize=2147000000", (2147262144, 12883638400)),
        ("trioha.frameBytesMax=70000000", (70000000, 420065536)),
    ):
        config = load(conf, text).config
        assert (config.frame_bytes_max, config.client_bytes_max) == limits


def test_one_address_may_use_half_of_all_connections_by_default(conf):
    assert load(conf, "trioha.connectionsMax=100").config.connections_per_peer == 50
    assert load(conf, "trioha.connectionsMax=1").config.connections_per_peer == 1
    loaded = load(conf, "trioha.connectionsMax=10\ntrioha.connectionsPerPeer=20")
    assert loaded.config.connections_per_peer == 20
    (warning,) = loaded.warnings
    assert warning.endswith(
        "broker.conf:2: trioha.connectionsPerPeer: is above trioha.connectionsMax=10: "
        "one address may take all places"
    )


def test_numbers_are_read_as_java_reads_them(conf):
    assert load(conf, "slaveTimeout=+0012").config.slave_timeout == 12
    for value in ("1_000", "\u0661", "--5", "+-5", "1" * 60):
        assert "slaveTimeout" in refusals(conf, f"slaveTimeout={value}")[0]
    assert refusals(conf, "deleteWhen=\u0664") == [
        "broker.conf:1: deleteWhen: '\u0664' is no hour of the day; give hours as in 04 or 04;16"
    ]


def test_name_servers_are_those_of_the_file_or_of_the_environment(conf, monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert load(conf, "").config.namesrv_addr == ()
    assert load(conf, "namesrvAddr = a:1; [::1]:2 ;a:1;").config.namesrv_addr == ("a:1", "[::1]:2")
    assert load(conf, "trioha.withNamesrv=true").config.namesrv_addr == ("127.0.0.1:9876",)
    monkeypatch.setenv("NAMESRV_ADDR", "env:9876;env2:9876")
    assert load(conf, "").config.namesrv_addr == ("env:9876", "env2:9876")
    assert load(conf, "trioha.withNamesrv=true").config.namesrv_addr == ("env:9876", "env2:9876")
    assert load(conf, "namesrvAddr=a:1").config.namesrv_addr == ("a:1",)
    assert load(conf, "", "namesrvAddr=b:1").config.namesrv_addr == ("b:1",)
    monkeypatch.setenv("NAMESRV_ADDR", "nonsense")
    assert refusals(conf, "") == [f"$NAMESRV_ADDR: 'nonsense' is not an address: it has no port; {HINT}"]


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER", "SLAVE"])
def test_a_distributions_files_of_two_masters_and_two_slaves_are_taken_as_they_are(conf, monkeypatch, role):
    """conf/2m-2s-sync and 2m-2s-async: name servers come from the environment, and with them the master."""
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")
    broker_id = int(role == "SLAVE")
    loaded = load(
        conf,
        f"brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId={broker_id}\ndeleteWhen=04\n"
        f"fileReservedTime=48\nbrokerRole={role}\nflushDiskType=ASYNC_FLUSH\n",
    )
    assert loaded.warnings == ()
    assert loaded.config.ha_master_address is None
    assert loaded.config.namesrv_addr == ("127.0.0.1:9876",)


def test_the_second_port_for_clients_is_two_below_the_first():
    ports = {0: None, 1: None, 2: None, 3: 1, 10911: 10909, 65535: 65533}
    assert {port: BrokerConfig(listen_port=port).vip_port for port in ports} == ports


def test_acl_enable_needs_a_file_of_rules(conf, monkeypatch):
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    assert refusals(conf, "aclEnable=true") == [
        "broker.conf: trioha.aclFile: is missing, but aclEnable is true; give the path of a plain_acl.yml"
    ]
    of_home = load(conf, "aclEnable=true\nrocketmqHome=/home").config
    assert of_home.acl_file == Path("/home/conf/plain_acl.yml")
    monkeypatch.setenv("ROCKETMQ_HOME", "/rocketmq")
    assert load(conf, "aclEnable=true").config.acl_file == Path("/rocketmq/conf/plain_acl.yml")
    assert load(conf, "aclEnable=true\nrocketmqHome=/home").config.rocketmq_home == Path("/home")
    assert load(conf, "aclEnable=true\ntrioha.aclFile=/a.yml").config.acl_file == Path("/a.yml")


def test_settings_of_tls_may_be_in_a_file_of_their_own(conf):
    own = conf.with_name("tls.properties")
    own.write_text(
        "tls.server.mode = enforcing\ntls.server.certPath=/own.pem\ntls.server.keyPath=/own.key\n"
        "tls.test.mode.enable=false\nsomething.else=1\n"
    )
    loaded = load(conf, f"tls.config.file={own}\ntls.server.certPath=/given.pem")
    assert loaded.config.tls_server_mode is TlsMode.ENFORCING
    assert loaded.config.tls_server_cert_path == Path("/given.pem")
    assert loaded.config.tls_server_key_path == Path("/own.key")
    own.write_text("tls.server.mode=strict\ntls.server.mod=x\n")
    assert refusals(conf, f"tls.config.file={own}") == [
        (
            "tls.properties:1: tls.server.mode: 'strict' is not one of its values; "
            "give one of disabled, permissive, enforcing"
        ),
        "tls.properties:2: tls.server.mod: is not a key of RocketMQ or trioha; did you mean tls.server.mode?",
    ]
    own.unlink()
    (missing,) = refusals(conf, f"tls.config.file={own}")
    assert missing.startswith("broker.conf:1: tls.config.file: cannot be read: No such file")


def test_secrets_are_not_shown():
    config = BrokerConfig(
        secret_key="node-secret",
        tls_server_key_password="pass word",
        init_authentication_user=Account("admin", "first-secret"),
        inner_client_credentials=Account("node", "inner-secret"),
    )
    assert "first-secret" not in repr(config)
    assert "inner-secret" not in repr(config)
    assert "node-secret" not in repr(config)
    assert "pass word" not in repr(config)
    secrets = [setting.key for setting in broker.SETTINGS.values() if setting.is_secret]
    assert secrets == [
        "trioha.secretKey",
        "tls.server.keyPassword",
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
    ]


def test_urls_of_archives_have_the_schemes_that_archives_can_open():
    assert values.ARCHIVE_SCHEMES == SCHEMES
