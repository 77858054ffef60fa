"""Apache's Python SDK of gRPC, told by lines of JSON what to do; run by the Python of its own environment.

One command a line on stdin, one answer a line on stdout: `{"result": ...}`, or `{"error": text}`.
"""

import json
import sys
import threading
import traceback

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)


def filter_of(tags):
    return FilterExpression(tags)


def described(message):
    return {
        "body": message.body.decode(),
        "attempt": message.delivery_attempt,
        "tag": message.tag,
        "group": message.message_group,
        "properties": dict(message.properties or {}),
    }


class Checker(TransactionChecker):
    """Commits what its producer has not decided."""

    def check(self, message):
        return TransactionResolution.COMMIT


class Listener(MessageListener):
    """Notes what it consumes, and fails for the bodies that it was given."""

    def __init__(self, failing):
        self._failing = failing
        self._lock = threading.Lock()
        self.consumed = []

    def consume(self, message):
        with self._lock:
            self.consumed.append(described(message))
        return ConsumeResult.FAILURE if message.body.decode() in self._failing else ConsumeResult.SUCCESS


class Clients:
    """All that was started, by name."""

    def __init__(self, endpoints, *account):
        self._configuration = ClientConfiguration(endpoints, Credentials(*account), request_timeout=20)
        self._clients = {}
        self._listeners = {}
        self._messages = {}

    def producer(self, name, topics, transactions=False):
        producer = Producer(self._configuration, topics, checker=Checker() if transactions else None)
        producer.startup()
        self._clients[name] = producer

    def send(self, name, topic, bodies, *, tag=None, group=None, at_ms=None, transaction=None):
        producer, sent = self._clients[name], []
        for body in bodies:
            message = Message()
            message.topic = topic
            message.body = body.encode()
            message.keys = f"key-{body}"
            message.add_property("colour", "red")
            if tag is not None:
                message.tag = tag
            if group is not None:
                message.message_group = group
            if at_ms is not None:
                message.delivery_timestamp = at_ms // 1000
            if transaction is None:
                sent.append(producer.send(message).message_id)
                continue
            opened = producer.begin_transaction()
            sent.append(producer.send(message, opened).message_id)
            if transaction == "commit":
                opened.commit()
            elif transaction == "rollback":
                opened.rollback()
        return sent

    def simple(self, name, group, topic, *, tags="*", wait_s=5):
        consumer = SimpleConsumer(self._configuration, group, {topic: filter_of(tags)}, await_duration=wait_s)
        consumer.startup()
        self._clients[name] = consumer

    def receive(self, name, number, invisible_s):
        found = self._clients[name].receive(number, invisible_s) or []
        for message in found:
            self._messages[name, message.body.decode()] = message
        return [described(message) for message in found]

    def ack(self, name, bodies):
        for body in bodies:
            self._clients[name].ack(self._messages[name, body])

    def change(self, name, body, invisible_s):
        self._clients[name].change_invisible_duration(self._messages[name, body], invisible_s)

    def push(self, name, group, topic, *, failing=(), tags="*"):
        self._listeners[name] = listener = Listener(set(failing))
        consumer = PushConsumer(self._configuration, group, listener, {topic: filter_of(tags)})
        consumer.startup()
        self._clients[name] = consumer

    def consumed(self, name):
        return list(self._listeners[name].consumed)

    def end(self, name):
        self._clients.pop(name).shutdown()


def main():
    clients = Clients(*sys.argv[1:])
    answers = sys.stdout
    # The SDK prints, too.
    sys.stdout = sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"result": getattr(clients, asked.pop("do"))(**asked)}
        except Exception:  # noqa: BLE001 - the test shows it
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
