"""Producer and consumer for trio programs, over trioha nodes and RocketMQ brokers: see docs/clients.md."""

from trioha.client.administration import Administration
from trioha.client.cluster import open_cluster
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt
from trioha.client.messages import Message, ReceivedMessage
from trioha.client.producer import Producer, ProducerSettings, SendError, SendResult
from trioha.client.routes import TopicNotFoundError
from trioha.remoting.route import MessageQueue

__all__ = [
    "Administration",
    "Consumer",
    "ConsumerSettings",
    "Message",
    "MessageQueue",
    "Producer",
    "ProducerSettings",
    "ReceivedMessage",
    "SendError",
    "SendResult",
    "Start",
    "StartAt",
    "TopicNotFoundError",
    "open_cluster",
]
