"""What an honest broker and an honest name server answer: bodies that tests spoil."""

from __future__ import annotations

from typing import Any

HA_STATUS: dict[str, Any] = {
    "haClientRuntimeInfo": {
        "lastReadTimestamp": 1700000000000, "lastWriteTimestamp": 1700000000000,
        "masterAddr": "127.0.0.1:10912",
        "masterFlushOffset": 0, "maxOffset": 5000, "transferredByteInSecond": 100,
    },
    "haConnectionInfo": [
        {
            "addr": "127.0.0.1:40000", "ackLatencyMicros": [100, 200, 300, 4], "connectionId": 3, "diff": 100,
            "frameBytes": [100, 200, 300, 4], "heardMillis": 5, "inSync": True, "lagMillis": 7,
            "slaveAckOffset": 4900, "state": "TRANSFER", "transferFromWhere": 5000,
            "transferredByteInSecond": 9,
        },
        {"addr": "127.0.0.1:40001", "diff": 5000, "inSync": False, "slaveAckOffset": 0,
        "transferFromWhere": 0,
         "transferredByteInSecond": 0},
    ],
    "inSyncSlaveNums": 1, "master": True, "masterCommitLogMaxOffset": 5000,
    "trioha": {
        "version": "trioha 0.1.0", "role": "SYNC_MASTER", "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0, "haAddress": "127.0.0.1:10912", "settings": {"haMaxGapNotInSync": 268435456,
        "slaveTimeout": 3000, "haHousekeepingInterval": 20000, "mappedFileSizeCommitLog": 1073741824},
        "warnings": ["a warning"], "minOffset": 0, "flushedOffset": 4950, "dispatchedOffset": 5000,
        "dispatchFault": "", "files": 1, "putStatuses": {"PUT_OK": 50, "FLUSH_SLAVE_TIMEOUT": 1},
        "endedConnections": {"EOF": 2},
        "client": {"state": "TRANSFER", "reportedOffset": 4000, "reconnects": 1, "verdict": "",
                   "localAddress": "127.0.0.1:50000", "observer": False},
    },
}  # fmt: skip
"""A body of 907 with every key that the client knows, of master and slave."""
RUNTIME_INFO: dict[str, Any] = {
    "table": {
        "bootTimestamp": "1700000000000", "brokerVersionDesc": "V4_9_7", "commitLogDirCapacity":
        "Total : 100.0 GiB, Free : 50.0 GiB.", "commitLogDiskRatio": "0.5", "commitLogMaxOffset": "5000",
        "commitLogMinOffset": "0", "dispatchBehindBytes": "0", "earliestMessageTimeStamp": "1700000000000",
        "putMessageFailedTimes": "0", "putMessageTimesTotal": "50", "putTps": "5.0 1.0 0.1",
        "remainHowManyDataToFlush": "50 B", "getTransferredTps": "0.0 0.0 0.0",
    }
}  # fmt: skip
CONFIG = {
    "brokerRole": "SYNC_MASTER", "brokerName": "broker-a", "brokerClusterName": "c", "brokerId": "0",
    "brokerIP2": "127.0.0.1", "haListenPort": "10912", "haMaxGapNotInSync": "268435456",
    "slaveTimeout": "3000",
    "haHousekeepingInterval": "20000", "haSendHeartbeatInterval": "5000",
    "mappedFileSizeCommitLog": "1073741824",
    "fileReservedTime": "72", "diskMaxUsedSpaceRatio": "75",
}  # fmt: skip
CLUSTER_INFO: dict[str, Any] = {
    "brokerAddrTable": {
        "broker-a": {
            "brokerAddrs": {"0": "127.0.0.1:10911", "1": "127.0.0.1:10921"},
            "brokerName": "broker-a",
            "cluster": "c",
        }
    },
    "clusterAddrTable": {"c": ["broker-a"]},
}
SEND_RESULT = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"}
