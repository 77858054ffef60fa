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
from rocketmq.grpc_protocol import FilterType


def filter_of(tags, sql):
    return FilterExpression(tags) if sql is None else FilterExpression(sql, FilterType.SQL)


def described(message):
    return {
        "body": message.body.decode(),
        "attempt": message.delivery_attempt,
        "tag": message.tag,
        "group": message.message_group,
        "properties": dict(message.properties or {}),
    }


class Checker(TransactionChecker):
    """Commits what its producer has not decided, or rolls it back: bodies that begin with "no"."""

    def check(self, message):
        is_wanted = not message.body.startswith(b"no")
        return TransactionResolution.COMMIT if is_wanted else TransactionResolution.ROLLBACK


class Listener(MessageListener):
    """Notes what it consumes, and fails for the bodies that it was given: always, or once."""

    def __init__(self, failing, failing_once):
        self._failing = failing
        self._failing_once = failing_once
        self._lock = threading.Lock()
        self.consumed = []

    def consume(self, message):
        body = message.body.decode()
        with self._lock:
            self.consumed.append(described(message))
            fails = body in self._failing or body in self._failing_once
            self._failing_once.discard(body)
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


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

    def send(
        self, name, topic, bodies, *, tag=None, group=None, at_ms=None, transaction=None, is_async=False,
        properties=None,
    ):  # fmt: skip
        producer, sent, waiting = self._clients[name], [], []
        for body in bodies:
            message = Message()
            message.topic = topic
            message.body = body.encode()
            message.keys = f"key-{body[:20]}"
            for key, value in (properties or {"colour": "red"}).items():
                message.add_property(key, value)
            if tag is not None:
                message.tag = tag
            if group is not None:
                message.message_group = group
            if at_ms is not None:
                message.delivery_timestamp = at_ms // 1000
            if is_async:
                waiting.append(producer.send_async(message))
                continue
            if transaction is None:
                sent.append(producer.send(message).message_id)
                continue
            opened = producer.begin_transaction()
            sent.append(producer.send(message, opened).message_id)
            if transaction == "commit":
                opened.commit()
            elif transaction == "rollback":
                opened.rollback()
        return sent + [future.result(60).message_id for future in waiting]

    def simple(self, name, group, topic, *, tags="*", sql=None):
        subscription = {topic: filter_of(tags, sql)}
        consumer = SimpleConsumer(self._configuration, group, subscription, await_duration=5)
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

    def push(self, name, group, topic, *, failing=(), failing_once=(), tags="*"):
        self._listeners[name] = listener = Listener(set(failing), set(failing_once))
        consumer = PushConsumer(self._configuration, group, listener, {topic: filter_of(tags, None)})
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
