"""A broker.conf with errors is refused with their places and reasons; settings that do not fit are named."""

import re
from collections.abc import Iterator

import pytest

from tests.config.loading import load, refusals
from trioha.config.loading import InvalidConfig
from trioha.host_port import HINT


def cases(table: str) -> Iterator[tuple[str, str]]:
    """Cases of a table: the lines of a file, and what is said of them in the indented lines after it."""
    for lines, said in re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", table, re.MULTILINE):
        line = " ".join(said.split()).replace("HINT", HINT)
        yield lines.replace("@controller\n", IN_CONTROLLER_MODE), line if line[0].isdigit() else f" {line}"


IN_CONTROLLER_MODE = "enableControllerMode=true\ncontrollerAddr=c0:9878;c1:9878\nnamesrvAddr=ns:9876\n"
REFUSED = r"""
listenPort=abc
    1: listenPort: 'abc' is not a whole number; give 0 to 65535
listenPort=
    1: listenPort: an empty value is not a whole number; give 0 to 65535
listenPort=1_0
    1: listenPort: '1_0' is not a whole number; give 0 to 65535
listenPort=0x10
    1: listenPort: '0x10' is not a whole number; give 0 to 65535
listenPort=5000.0
    1: listenPort: '5000.0' is not a whole number; give 0 to 65535
listenPort=65536
    1: listenPort: 65536 is out of range; give 0 to 65535
listenPort=-1
    1: listenPort: -1 is out of range; give 0 to 65535
slaveTimeout=2147483648
    1: slaveTimeout: 2147483648 is out of range; give 1 to 2147483647
slaveTimeout=0
    1: slaveTimeout: 0 is out of range; give 1 to 2147483647
haTransferBatchSize=4194293
    1: haTransferBatchSize: 4194293 is out of range; give 1 to 4194292
# one
# two
brokerRole=master
    3: brokerRole: 'master' is not one of its values; give one of ASYNC_MASTER, SYNC_MASTER, SLAVE
flushDiskType=sync_flush
    1: flushDiskType: 'sync_flush' is not one of its values; give one of ASYNC_FLUSH, SYNC_FLUSH
trioha.metricsPort=x
    1: trioha.metricsPort: 'x' is not a whole number; give 0 to 65535
listenPort=9000
trioha.metricsPort=9001
    2: trioha.metricsPort: is 9001, and so is haListenPort; give another port
listenPort=9000
trioha.metricsPort=8998
    2: trioha.metricsPort: is 8998, and so is the second port for clients, listenPort - 2; give another
    port
trioha.logFormat=xml
    1: trioha.logFormat: 'xml' is not one of its values; give one of console, json
trioha.archiveUrl=ftp://host/x
    1: trioha.archiveUrl: 'ftp://host/x' is not a URL of an object storage; give s3://, gs://, az:// or
    file:///
trioha.archiveUrl=/backups
    1: trioha.archiveUrl: '/backups' is not a URL of an object storage; give s3://, gs://, az:// or
    file:///
trioha.archiveUrl=file://backups
    1: trioha.archiveUrl: 'file://backups' is not an absolute folder; give file:///folder
trioha.archiveUrl=gs:///x
    1: trioha.archiveUrl: 'gs:///x' names no bucket; give gs://bucket/folder
trioha.archiveUrl=s3://KEY:SECRET@bucket/x
    1: trioha.archiveUrl: has more than a bucket and a folder; give credentials by the environment
    (AWS_ACCESS_KEY_ID, ...)
trioha.archiveUrl=az://c/x?sig=SECRET
    1: trioha.archiveUrl: has more than a bucket and a folder; give credentials by the environment
    (AWS_ACCESS_KEY_ID, ...)
trioha.archiveUrl=s3://[x/y
    1: trioha.archiveUrl: is not a URL; give s3://bucket/folder or file:///folder
trioha.archiveInterval=99
    1: trioha.archiveInterval: 99 is out of range; give 100 to 2147483647
trioha.archiveKeep=30
    1: trioha.archiveKeep: '30' is no duration; give a duration as in 30d or 12h
trioha.archiveKeep=0d
    1: trioha.archiveKeep: '0d' is no time at all; give a duration as in 30d or 12h
brokerName=
    1: brokerName: is empty; give a name or leave the key out
brokerName=a b
    1: brokerName: 'a b' has blanks or control characters; give a plain name
brokerIP1=host
    1: brokerIP1: 'host' is not an IP address; give an IPv4 or IPv6 address
brokerIP1=fe80::1%eth0
    1: brokerIP1: 'fe80::1%eth0' has a zone, which a record cannot hold; leave out the %zone
haMasterAddress=host
    1: haMasterAddress: 'host' is not an address: it has no port; HINT
haMasterAddress=::1:10912
    1: haMasterAddress: '::1:10912' is not an address: an IPv6 host stands in brackets; HINT
haMasterAddress=h:0
    1: haMasterAddress: 'h:0' is not an address: '0' is not a port from 1 to 65535; HINT
storePathRootDir=
    1: storePathRootDir: is empty; give a directory or leave the key out
storePathRootDir=\u0000
    1: storePathRootDir: has a NUL character; give a plain path
storePathCommitLog=/a,/b
    1: storePathCommitLog: names several directories; trioha keeps one commit log in one directory
brokerNmae=x
    1: brokerNmae: is not a key of RocketMQ or trioha; did you mean brokerName?
haslavefallbehindmax=1
    1: haslavefallbehindmax: is not a key of RocketMQ or trioha; did you mean haSlaveFallbehindMax?
recordDir=/x
    1: recordDir: is not a key of RocketMQ or trioha; did you mean trioha.recordDir?
zzz=1
    1: zzz: is not a key of RocketMQ or trioha
brokerName=C:\users
    1: brokerName: \u is not followed by four hexadecimal digits; a backslash itself is written \\
brokerId=1
    1: brokerId: is 1, but brokerRole is ASYNC_MASTER; a master has brokerId 0; a slave has
    brokerRole=SLAVE
brokerRole=SLAVE
haMasterAddress=h:1
brokerId=0
    3: brokerId: is 0, which is the master's, but brokerRole is SLAVE; give 1 or more
brokerRole=SLAVE
brokerId=1
    haMasterAddress: is missing, but brokerRole is SLAVE; give HOST:PORT of the master's HA service, or
    namesrvAddr to learn it there
brokerRole=SLAVE
brokerId=40000
haMasterAddress=h:1
trioha.recordDir=/r
    2: brokerId: is 40000, which a recorded session cannot hold; give at most 32767 or leave out
    trioha.recordDir
inSyncReplicas=3
totalReplicas=2
    1: inSyncReplicas: is 3, but totalReplicas is only 2; raise totalReplicas
listenPort=65535
    1: listenPort: leaves no port for haListenPort, which is listenPort + 1 by default; give haListenPort
listenPort=7
haListenPort=7
    2: haListenPort: is 7, and so is listenPort; give another port
listenPort=9
haListenPort=7
    2: haListenPort: is 7, the second port for clients, listenPort - 2; give another port
tls.server.certPath=/c.pem
    tls.server.keyPath: is missing, TLS needs a certificate and its key; give both
tls.server.mode=enforcing
    tls.server.certPath: is missing, but tls.server.mode is enforcing; give certificate and key
tls.server.mode=strict
    1: tls.server.mode: 'strict' is not one of its values; give one of disabled, permissive, enforcing
tls.server.authClient=true
tls.server.need.client.auth=require
    tls.server.trustCertPath: is missing, but tls.server.authClient is true; give the authorities of the
    clients' certificates
tls.server.trustCertPath=/ca.pem
tls.server.need.client.auth=require
    2: tls.server.need.client.auth: is require, but certificates of clients are not verified; give
    tls.server.authClient=true and tls.server.trustCertPath
tls.server.mode=enforcing
trioha.withNamesrv=true
tls.server.certPath=/c.pem
tls.server.keyPath=/k.pem
    tls.enable: is false, but tls.server.mode is enforcing, also for the node's own name server; give
    tls.enable=true
tls.client.authServer=true
    tls.client.trustCertPath: is missing, but tls.client.authServer is true; give the authorities of the
    name servers' certificates
trioha.accessKey=abc
    trioha.secretKey: is missing beside trioha.accessKey; give both
trioha.secretKey=abc
    trioha.accessKey: is missing beside trioha.secretKey; give both
authenticationEnabled=true
    authenticationMetadataProvider: is missing, but authenticationEnabled is true; give
    org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
migrateAuthFromV1Enabled=true
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
authorizationMetadataProvider=org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider
    rocketmqHome: is missing, but migrateAuthFromV1Enabled is true; give the folder whose conf has
    plain_acl.yml
authorizationEnabled=true
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
    authorizationMetadataProvider: is missing, but authorizationEnabled is true; give
    org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider
authenticationMetadataProvider=org.example.Ldap
    1: authenticationMetadataProvider: 'org.example.Ldap' is a class that trioha does not have; give
    org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
authenticationStrategy=x
    1: authenticationStrategy: 'x' is a class that trioha does not have; give
    org.apache.rocketmq.auth.authentication.strategy.StatelessAuthenticationStrategy or
    org.apache.rocketmq.auth.authentication.strategy.StatefulAuthenticationStrategy
authenticationWhitelist=34;310
    1: authenticationWhitelist: '34;310' is not a whole number; give 0 to 2147483647
initAuthenticationUser={"username":"admin","password":"secret
    1: initAuthenticationUser: is not a JSON object with username and password; give
    {"username":"...","password":"..."}
innerClientAuthenticationCredentials={"accessKey":"node"}
    1: innerClientAuthenticationCredentials: is not a JSON object with accessKey and secretKey; give
    {"accessKey":"...","secretKey":"..."}
authenticationEnabled=true
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
aclEnable=true
trioha.aclFile=/a.yml
    1: authenticationEnabled: is true, and so is aclEnable: a request is checked by one of both; leave out
    aclEnable; migrateAuthFromV1Enabled=true makes users of the accounts
innerClientAuthenticationCredentials={"accessKey":"node","secretKey":"s"}
trioha.accessKey=other
trioha.secretKey=s
    1: innerClientAuthenticationCredentials: names another account than trioha.accessKey; give one of both
enableControllerMode=true
namesrvAddr=ns:9876
    controllerAddr: is missing, but enableControllerMode is true; give HOST:PORT of each controller, split
    by ;
enableControllerMode=true
controllerAddr=c0:1
    namesrvAddr: is missing, but enableControllerMode is true; give the name servers: clients and slaves
    find the master there
trioha.frameBytesMax=1000000
    1: trioha.frameBytesMax: is 1000000, too little for a message of maxMessageSize=4194304; give at least
    4456448 or lower maxMessageSize
trioha.clientBytesMax=1000000
    1: trioha.clientBytesMax: is 1000000, too little for trioha.frameBytesMax=16777216; give at least
    100728832 or lower trioha.frameBytesMax
namesrvAddr=a:1;b
    1: namesrvAddr: 'b' is not an address: it has no port; HINT
brokerRole=slave
brokerId=1
    1: brokerRole: 'slave' is not one of its values; give one of ASYNC_MASTER, SYNC_MASTER, SLAVE
haMaxGapNotInSync=1
haSlaveFallbehindMax=2
    2: haSlaveFallbehindMax: contradicts haMaxGapNotInSync in line 1, another name of it; keep one
@controller
brokerId=1
    4: brokerId: is 1, but with enableControllerMode the controllers give the id; give -1 or leave it out
@controller
brokerRole=SYNC_MASTER
    4: brokerRole: is SYNC_MASTER, but with enableControllerMode the controllers give the role; give SLAVE
    or leave it out
@controller
haMasterAddress=h:1
    4: haMasterAddress: names a master, but enableControllerMode is true; leave it out
@controller
trioha.haRole=observer
    4: trioha.haRole: is observer, but enableControllerMode is true; asyncLearner=true makes a copy that is
    never elected
@controller
brokerName=a#b
    4: brokerName: has a #, which splits the fields of brokerIdentity; give a name without it
@controller
brokerHeartbeatInterval=10000
    4: brokerHeartbeatInterval: is 10000, not below controllerHeartBeatTimeoutMills=10000: this node would
    count as dead; lower it
brokerId=-1
    1: brokerId: is -1, but enableControllerMode is false; give 0 or more
minInSyncReplicas=3
    1: minInSyncReplicas: is 3, but inSyncReplicas is only 1; raise inSyncReplicas
brokerRole=SLAVE
brokerId=-1
haMasterAddress=h:1
    2: brokerId: is -1, but enableControllerMode is false; give 0 or more
"""


@pytest.mark.parametrize(("text", "refusal"), cases(REFUSED))
def test_invalid_settings_are_refused_with_file_line_key_and_reason(conf, text, refusal):
    assert refusals(conf, text) == [f"broker.conf:{refusal}"]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(conf):
    text = "brokerRole=SLAVE\nslaveTimeout=x\nfoo.bar=1\nbrokerId=0\n"
    assert refusals(conf, text, "maxMessageSize=-4", "listenPort") == [
        "broker.conf:2: slaveTimeout: 'x' is not a whole number; give 1 to 2147483647",
        "broker.conf:3: foo.bar: is not a key of RocketMQ or trioha",
        "broker.conf:4: brokerId: is 0, which is the master's, but brokerRole is SLAVE; give 1 or more",
        "-p listenPort: is not of the form key=value",
        "-p maxMessageSize: -4 is out of range; give 1 to 2147483647",
        (
            "broker.conf: haMasterAddress: is missing, but brokerRole is SLAVE; "
            "give HOST:PORT of the master's HA service, or namesrvAddr to learn it there"
        ),
    ]
    with pytest.raises(InvalidConfig) as refused:
        load(conf, text)
    assert [problem.line for problem in refused.value.problems] == [2, 3, 4, None]


def test_only_the_last_entry_of_a_key_is_checked(conf):
    loaded = load(conf, "listenPort=bad\nslaveTimeout=1\nlistenPort=9\n")
    assert loaded.config.listen_port == 9
    assert loaded.warnings == (f"{conf}:1: listenPort: is overridden by line 3",)


def test_rocketmq_keys_that_are_not_used_are_named_in_one_warning(conf):
    loaded = load(
        conf, "traceTopicEnable=true\nforceRegister=true\ntransferMsgByHeap=true", "brokerTopicEnable=true"
    )
    assert loaded.warnings == (
        (
            f"{conf}: known to RocketMQ, not used by trioha yet: "
            "traceTopicEnable, forceRegister, transferMsgByHeap, -p brokerTopicEnable"
        ),
    )


WARNED = """
brokerRole=SYNC_MASTER
inSyncReplicas=1
    2: inSyncReplicas: a SYNC_MASTER still waits for one slave; to wait for none, set
    brokerRole=ASYNC_MASTER
brokerRole=SYNC_MASTER
totalReplicas=1
    2: totalReplicas: a SYNC_MASTER needs a slave: without one every put is SLAVE_NOT_AVAILABLE
haMasterAddress=h:1
    1: haMasterAddress: is not used by a ASYNC_MASTER
mappedFileSizeCommitLog=65536
    1: mappedFileSizeCommitLog: a file of 65536 bytes has no room for maxMessageSize=4194304: bodies beyond
    65436 bytes will be MESSAGE_ILLEGAL
trioha.archiveKeep=30d
    1: trioha.archiveKeep: has no effect without trioha.archiveUrl
haHousekeepingInterval=5000
    1: haHousekeepingInterval: haHousekeepingInterval=5000 is not above haSendHeartbeatInterval=5000: idle
    connections will be closed again and again
asyncLearner=true
    1: asyncLearner: has no effect without enableControllerMode=true
controllerAddr=c:1
    1: controllerAddr: has no effect without enableControllerMode=true
@controller
trioha.haGapPolicy=resync
    4: trioha.haGapPolicy: has no effect with enableControllerMode=true
"""


@pytest.mark.parametrize(("text", "warning"), cases(WARNED))
def test_settings_that_are_valid_but_harmful_are_warned_about(conf, text, warning):
    assert load(conf, text).warnings == (f"{conf}:{warning}",)


def test_a_usual_configuration_has_no_warnings(conf):
    for text in ("brokerRole=SYNC_MASTER", "brokerRole=SYNC_MASTER\ninSyncReplicas=2", "inSyncReplicas=1"):
        assert load(conf, text).warnings == ()


@pytest.mark.parametrize("text", ["", "brokerId=-1\nbrokerRole=SLAVE\n", "minInSyncReplicas=2\n"])
def test_in_controller_mode_the_controllers_give_id_and_role(conf, text):
    text += "asyncLearner=true\nsyncFromLastFile=true\nallAckInSyncStateSet=true\n"
    text += "trioha.haAcceptCut=4711\ntrioha.hangTimeout=20000\n"
    loaded = load(conf, IN_CONTROLLER_MODE + text)
    assert loaded.warnings == ()
    assert loaded.config.enable_controller_mode
    assert loaded.config.controller_addr == ("c0:9878", "c1:9878")
    assert loaded.config.async_learner
    assert loaded.config.sync_from_last_file
    assert (loaded.config.ha_accept_cut, loaded.config.hang_timeout) == (4711, 20_000)
