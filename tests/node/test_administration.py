"""Settings that administrators change take effect in the running broker."""

from functools import partial

import pytest

from tests.broker.recorded_broker import Master, here
from trioha.broker.transaction_settings import TransactionSettings
from trioha.metadata.topics import DEFAULT_TOPIC
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.send_message import SendMessageRequestHeader
from trioha.store.retention import RetentionSettings


@pytest.fixture
async def master(tmp_path, nursery):
    made = Master(tmp_path)
    nursery.start_soon(partial(made.metadata.run, in_thread=here))
    return made


async def change(master, text):
    answer = await master.answer(request(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode()))
    assert answer.code == ResponseCode.SUCCESS, answer


async def test_pulls_and_offsets_follow_their_settings(master):
    await change(
        master, "maxTransferCountOnMessageInMemory=7\nlongPollingEnable=false\nslaveReadEnable=true\n"
    )
    consumers = master.service.consumers
    assert consumers.pulls.settings is consumers.offsets.settings
    settings = consumers.pulls.settings
    assert (settings.messages_max, settings.long_polling, settings.slave_read) == (7, False, True)


async def test_a_broker_without_write_permission_refuses_sends_and_is_registered_so(master):
    topics = master.metadata.topics
    version = topics.version
    await change(master, "brokerPermission=4\n")
    header = SendMessageRequestHeader("g", "TopicSpec", "TBW102", 4, 0, 0, 0, 0)
    send = request(RequestCode.SEND_MESSAGE_V2, ext_fields=header.to_ext_fields())
    assert (await master.answer(send)).code == ResponseCode.NO_PERMISSION
    assert topics.version.counter > version.counter
    await change(master, "brokerPermission=6\n")
    assert (await master.answer(send)).code == ResponseCode.SUCCESS


async def test_topics_and_groups_follow_their_settings(master):
    await change(
        master, "autoCreateTopicEnable=false\ntrioha.topicsMax=50\nautoCreateSubscriptionGroup=false\n"
    )
    topics, groups = master.metadata.topics, master.metadata.groups
    assert topics.find_or_create("New", default_topic=DEFAULT_TOPIC, queue_nums=4) is None
    assert groups.find_or_create("new") is None
    assert topics.settings.topics_max == 50
    await change(master, "autoCreateTopicEnable=true\nautoCreateSubscriptionGroup=true\n")
    assert topics.find_or_create("New", default_topic=DEFAULT_TOPIC, queue_nums=4) is not None
    assert groups.find_or_create("new") is not None


async def test_transactions_follow_their_settings(master):
    service = master.service.transactions.service
    rounds = service.settings.check_interval_s
    await change(
        master,
        "transactionTimeOut=7\ntransactionCheckMax=8\nrejectTransactionMessage=true\n"
        "transactionOpBatchInterval=9000\ntransactionOpMsgMaxSize=10\ntrioha.openTransactionsMax=11\n"
        "fileReservedTime=12\n",
    )
    assert service.settings == TransactionSettings(
        broker_name=service.settings.broker_name,
        timeout_ms=7,
        check_interval_s=rounds,
        check_max=8,
        is_rejecting=True,
        op_interval_s=9.0,
        op_bytes_max=10,
        open_max=11,
        reserved_ms=12 * 3_600_000,
    )


async def test_retention_follows_its_settings(master, monkeypatch):
    configured = []
    monkeypatch.setattr("trioha.store.retention.Retention.configure", lambda _, new: configured.append(new))
    await change(
        master,
        "fileReservedTime=24\ndeleteWhen=03\ndiskMaxUsedSpaceRatio=60\ntrioha.archiveBeforeDelete=true\n",
    )
    assert configured == [
        RetentionSettings(
            file_reserved_s=86400.0,
            delete_when=frozenset({3}),
            disk_max_used_ratio=0.6,
            archive_before_delete=True,
        )
    ]
