"""How pops are answered, and what retry topics are called."""

from __future__ import annotations

from attrs import frozen

from trioha.remoting.pop_handle import PopSource
from trioha.store.topics import RETRY_TOPIC_PREFIX


@frozen
class PopSettings:
    """How pops are answered."""

    broker_name: str
    revive_queues: int = 8
    """reviveQueueNum."""
    retry_topics_v2: bool = False
    """enableRetryTopicV2: messages are given again in `%RETRY%group+topic`."""
    reads_retry_topics_v1: bool = True
    """retrieveMessageFromPopRetryTopicV1: with `retry_topics_v2`, `%RETRY%group_topic` is read, too."""
    retry_first_percent: int = 20
    """popFromRetryProbability: so often the retry topic is read first."""
    keeps_retry_topic: bool = False
    """popResponseReturnActualRetryTopic: records of retry topics are answered as they are stored."""
    begins_at_recent: bool = True
    """initPopOffsetByCheckMsgInMem: a new group begins at 0 where the queue's first message is recent."""

    def retry_topic(self, group: str, topic: str) -> str:
        """Where messages of a topic are given again to a group; a retry topic is its own."""
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return topic
        return retry_topic(group, topic, PopSource.RETRY_V2 if self.retry_topics_v2 else PopSource.RETRY_V1)

    def retry_sources(self, chance: int) -> tuple[PopSource, ...]:
        """The retry topics of a pop: the first that has messages is read, and no other."""
        if not self.retry_topics_v2:
            return (PopSource.RETRY_V1,)
        if not self.reads_retry_topics_v1:
            return (PopSource.RETRY_V2,)
        both = (PopSource.RETRY_V2, PopSource.RETRY_V1)
        return both if chance % 2 else both[::-1]


def popped_topic(group: str, topic: str) -> str:
    """The topic of the application whose messages a group pops, of that or of a retry topic of it."""
    for source in (PopSource.RETRY_V1, PopSource.RETRY_V2):
        prefix = retry_topic(group, "", source)
        if topic.startswith(prefix) and topic != prefix:
            return topic.removeprefix(prefix)
    return topic


def retry_topic(group: str, topic: str, source: PopSource) -> str:
    """The topic where a group's popped messages of `topic` are given again."""
    separator = "+" if source is PopSource.RETRY_V2 else "_"
    return f"{RETRY_TOPIC_PREFIX}{group}{separator}{topic}"
