"""Keys of what clients' requests do: delays, pulls, groups of consumers, transactions."""

from __future__ import annotations

from attrs import frozen

from trioha.config import values
from trioha.config.setting import setting
from trioha.config.values import LONG_MAX


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class MessageKeys:
    """Delays, pulls, consumers, transactions."""

    broker_permission: int = setting("brokerPermission", values.integer(low=0, high=15), default=6)
    """Bits: 4 messages may be pulled, 2 messages may be sent. RocketMQ default: 6."""

    message_delay_level: str = setting(
        "messageDelayLevel",
        values.delay_levels,
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    )
    """Delay of each level, from level 1 on. RocketMQ default: 18 levels of 1s to 2h."""

    timer_wheel_enable: bool = setting("timerWheelEnable", values.boolean, default=True)
    """Whether messages with a time of delivery are taken, and delivered. RocketMQ default: true."""

    timer_precision_ms: int = setting("timerPrecisionMs", values.integer(low=1), default=1000)
    """Milliseconds that a message comes late at most, beside what the delivery takes; lowered to 1000, 500,
    200 or 100. RocketMQ default: 1000."""

    timer_max_delay_sec: int = setting("timerMaxDelaySec", values.integer(low=1), default=3 * 24 * 3600)
    """Seconds: a message with a later time of delivery is refused. RocketMQ default: 259200."""

    timer_roll_window_slot: int = setting("timerRollWindowSlot", values.integer(low=2), default=2 * 24 * 3600)
    """Steps of `timer_precision_ms`: the record of a message that is due later is stored anew after them, so
    that it is in no file that is deleted by its age. RocketMQ default: 172800."""

    timer_congest_num_each_slot: int = setting(
        "timerCongestNumEachSlot", values.integer(low=1), default=values.INT_MAX
    )
    """Messages for one step of `timer_precision_ms`: with more of them one more is refused by chance, with
    twice as many always. RocketMQ default: 2147483647."""

    recall_message_enable: bool = setting("recallMessageEnable", values.boolean, default=False)
    """Whether producers may recall a message with a time of delivery. RocketMQ default: false."""

    revive_queue_num: int = setting("reviveQueueNum", values.integer(low=1, high=256), default=8)
    """Queues of the topic of popped messages' records: pops take them in turn. RocketMQ default: 8."""

    revive_interval: int = setting("reviveInterval", values.integer(low=1), default=1000)
    """Milliseconds between two looks for popped messages to be given again. RocketMQ default: 1000."""

    enable_retry_topic_v2: bool = setting("enableRetryTopicV2", values.boolean, default=False)
    """Whether popped messages are given again in `%RETRY%group+topic`; else in `%RETRY%group_topic`. RocketMQ
    default: false."""

    retrieve_message_from_pop_retry_topic_v1: bool = setting(
        "retrieveMessageFromPopRetryTopicV1", values.boolean, default=True
    )
    """Whether pops read `%RETRY%group_topic` also with `enable_retry_topic_v2`. RocketMQ default: true."""

    pop_from_retry_probability: int = setting(
        "popFromRetryProbability", values.integer(low=0, high=100), default=20
    )
    """Percent of the pops that read the retry topic before the topic itself. RocketMQ default: 20."""

    pop_response_return_actual_retry_topic: bool = setting(
        "popResponseReturnActualRetryTopic", values.boolean, default=False
    )
    """Whether messages of retry topics are answered with that topic. RocketMQ default: false."""

    init_pop_offset_by_check_msg_in_mem: bool = setting(
        "initPopOffsetByCheckMsgInMem", values.boolean, default=True
    )
    """Whether a new group that asks for the newest messages begins at 0 where the queue's first message is
    recent (`access_message_in_memory_max_ratio`). RocketMQ default: true."""

    enable_pop_message_threshold: bool = setting("enablePopMessageThreshold", values.boolean, default=False)
    """Whether a queue gives a group no more messages while more than `pop_inflight_message_threshold` are
    handed out and not acknowledged. RocketMQ default: false."""

    pop_inflight_message_threshold: int = setting(
        "popInflightMessageThreshold", values.integer(low=0), default=10_000
    )
    """With `enable_pop_message_threshold`: messages of one queue that a group may have at a time. RocketMQ
    default: 10000."""

    pop_polling_size: int = setting("popPollingSize", values.integer(low=1), default=1024)
    """Pops of one topic, group and queue that wait for messages at a time. RocketMQ default: 1024."""

    max_pop_polling_size: int = setting("maxPopPollingSize", values.integer(low=1), default=100_000)
    """Pops that wait for messages at a time. RocketMQ default: 100000."""

    pop_polling_map_size: int = setting("popPollingMapSize", values.integer(low=1), default=100_000)
    """Topics, groups and queues for which pops wait at a time. RocketMQ default: 100000."""

    long_polling_enable: bool = setting("longPollingEnable", values.boolean, default=True)
    """Whether a pull that finds nothing waits as long as it asks for. RocketMQ default: true."""

    short_polling_time_mills: int = setting("shortPollingTimeMills", values.integer(low=1), default=1000)
    """Milliseconds that it waits without `long_polling_enable`. RocketMQ default: 1000."""

    long_polls_max: int = setting("trioha.longPollsMax", values.integer(low=1), default=50_000)
    """Pulls that wait for messages at a time: one more is answered SYSTEM_BUSY."""

    max_transfer_count_on_message_in_memory: int = setting(
        "maxTransferCountOnMessageInMemory", values.integer(low=1), default=32
    )
    """Messages that one pull gives at most. RocketMQ default: 32."""

    max_transfer_bytes_on_message_in_memory: int = setting(
        "maxTransferBytesOnMessageInMemory", values.integer(low=1), default=256 * 1024
    )
    """Bytes that one pull gives at most; a larger message is given alone. RocketMQ default: 262144."""

    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio", values.integer(low=0, high=100), default=40
    )
    """Percent of the machine's memory: messages farther from the log's end than this count as old.

    A new group begins at the log's end where the queue's first message is old, and `slave_read_enable` sends
    consumers of old messages to a slave. RocketMQ default: 40.
    """

    slave_read_enable: bool = setting("slaveReadEnable", values.boolean, default=False)
    """Whether consumers may be sent to a slave. RocketMQ default: false.

    A slave answers pulls in any case. It counts messages as old at 10 percent of the memory less than
    `access_message_in_memory_max_ratio`, as in 5.x.
    """

    consume_replicated_only: bool = setting("trioha.consumeReplicatedOnly", values.boolean, default=False)
    """Whether consumers of a SYNC_MASTER receive a message only when as many slaves hold it as its put needs.

    While no slave acknowledges, they receive nothing new.
    """

    notify_consumer_ids_changed_enable: bool = setting(
        "notifyConsumerIdsChangedEnable", values.boolean, default=True
    )
    """Whether consumers of a group are notified when its members change. RocketMQ default: true."""

    consumers_max: int = setting("trioha.consumersMax", values.integer(low=1), default=10_000)
    """Members of all groups of consumers and producers at a time: one more is refused.

    A client is a member of each group that its heartbeat names.
    """

    queue_locks_max: int = setting("trioha.queueLocksMax", values.integer(low=1), default=100_000)
    """Locks of queues for ordered consumption at a time: one more is not given."""

    statistics_max: int = setting("trioha.statisticsMax", values.integer(low=1), default=20_000)
    """Topics, and pairs of topic and group, whose messages are counted over the last minute, hour and day.

    One more is not counted. Each takes some 5 KiB.
    """

    reject_transaction_message: bool = setting("rejectTransactionMessage", values.boolean, default=False)
    """Whether half messages are refused. RocketMQ default: false."""

    open_transactions_max: int = setting("trioha.openTransactionsMax", values.integer(low=1), default=100_000)
    """Half messages without a decision: one more is refused. Each takes some 600 bytes."""

    transaction_time_out: int = setting(
        "transactionTimeOut", values.integer(low=1, high=LONG_MAX), default=6000
    )
    """Milliseconds after which a half message that is not decided may be checked. RocketMQ default: 6000."""

    transaction_check_interval: int = setting(
        "transactionCheckInterval", values.integer(low=1), default=30_000
    )
    """Milliseconds between two rounds of checks. RocketMQ default: 30000, in 4.9 60000."""

    transaction_check_max: int = setting("transactionCheckMax", values.integer(low=0), default=15)
    """Checks of a half message; then it goes to TRANS_CHECK_MAX_TIME_TOPIC. RocketMQ default: 15."""

    transaction_op_batch_interval: int = setting(
        "transactionOpBatchInterval", values.integer(low=0), default=0
    )
    """Milliseconds for which the ends of transactions are gathered into one op record; 0 writes a record for
    each end at once, as 4.9 does.

    5.x reads both kinds of records. With 0 a crash makes fewer transactions decide twice. RocketMQ default:
    3000, and 4.9 does not gather.
    """

    transaction_op_msg_max_size: int = setting(
        "transactionOpMsgMaxSize", values.integer(low=1, high=1 << 20), default=4096
    )
    """Bytes of an op record's body that are not gathered any longer. RocketMQ default: 4096."""
