"""RocketMQ's own clients and mqadmin in a JVM (`java/client/ClientDriver.java`)."""

from __future__ import annotations

import base64
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.interop.java import OPENED, JavaError
from tests.interop.rocketmq import client_class_path, home_flags, java_tool
from tests.processes import DIE_WITH_PARENT, environment_of_ours

ANSWER_TIMEOUT_S: Final = 180.0
"""For each command: mqadmin takes a second or two, `consume` a minute at most for its messages."""
_LOGBACK: Final = '<configuration><root level="OFF"/></configuration>'


class RocketClients:
    """A JVM with the clients of one RocketMQ version."""

    def __init__(self, version: str, *, folder: Path) -> None:
        self.version = version
        home = self._home = folder / "home"
        (home / "conf").mkdir(parents=True)
        for name in ("logback.xml", "conf/logback_tools.xml"):
            (home / name).write_text(_LOGBACK)
        self._log_path = folder / "clients.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT, java_tool("java"),
                    "-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
                    *OPENED, *home_flags(home),
                    f"-Dlogback.configurationFile={home / 'logback.xml'}",
                    f"-Drmq.logback.configurationFile={home / 'logback.xml'}",
                    "-Drocketmq.client.logUseSlf4j=true",
                    # A consumer whose offsets were reset waits for the next rebalancing, 20 s by default.
                    "-Drocketmq.client.rebalance.waitInterval=2000",
                    "-cp", client_class_path(version), "interop.ClientDriver",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment_of_ours(),
                text=True,
                bufsize=1,
            )  # fmt: skip
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._unread = 0
        """Answers of commands whose callers have given up waiting."""
        self._reader = threading.Thread(target=self._read, name=f"clients-{version}", daemon=True)
        self._reader.start()

    def mqadmin(self, command: str, name_servers: str, *arguments: str) -> str:
        """What `mqadmin COMMAND -n NAME_SERVERS ARGUMENTS` prints."""
        return self._call("mqadmin", command, "-n", name_servers, *arguments)

    def send(self, name_servers: str, topic: str, count: int) -> list[tuple[str, str, int]]:
        """Send with DefaultMQProducer: status, broker name and queue id of each message."""
        lines = self._call("send", name_servers, topic, str(count)).splitlines()
        return [(status, broker, int(queue_id)) for status, broker, queue_id in map(str.split, lines)]

    def consume(self, name_servers: str, topic: str, count: int) -> list[str]:
        """Consume with DefaultMQPushConsumer from the start: bodies of the first `count` messages or more."""
        return self._call("consume", name_servers, topic, str(count)).splitlines()

    def join(self, name_servers: str, topic: str, group: str) -> str:
        """Connect a producer of `GROUP-producer` and a consumer; the offset id of the producer's message."""
        return self._call("join", name_servers, topic, group)

    def received(self) -> list[str]:
        """Bodies that the consumer of `join` has received so far."""
        return self._call("received").splitlines()

    def leave(self) -> None:
        """Disconnect the clients of `join`."""
        self._call("leave")

    @contextmanager
    def secured(
        self, access_key: str = "", secret_key: str = "", *, tls: bool = False, vip: bool = False
    ) -> Iterator[None]:
        """Sign with an account, use TLS, send to the second port inside the `with`. mqadmin only signs."""
        tools = self._home / "conf" / "tools.yml"
        if access_key:
            tools.write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")
        self._call("security", access_key, secret_key, str(tls).lower(), str(vip).lower())
        try:
            yield
        finally:
            tools.unlink(missing_ok=True)
            self._call("security", "", "", "false", "false")

    def close(self) -> None:
        """End the JVM."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
        self._reader.join(60)
        stdout.close()

    def _call(self, *fields: str) -> str:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write("\t".join(fields) + "\n")
        stdin.flush()
        # Also if the test is ended in the meantime: the next one must not be given this one's answer.
        self._unread += 1
        line: str | None = None
        with suppress(queue.Empty):
            while self._unread:
                line = self._answers.get(timeout=ANSWER_TIMEOUT_S)
                if line is None:
                    break
                self._unread -= 1
        if self._unread or line is None:
            said = self._log_path.read_text(errors="replace")[-4000:]
            raise JavaError(f"the {self.version} clients did not answer {fields}:\n{said}")
        outcome, _, encoded = line.strip().partition("\t")
        text = base64.b64decode(encoded).decode()
        if outcome != "ok":
            raise JavaError(f"RocketMQ {self.version}, {fields}: {text}")
        return text

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)


@contextmanager
def rocket_clients(version: str, *, folder: Path) -> Iterator[RocketClients]:
    """Clients for as long as the block runs."""
    clients = RocketClients(version, folder=folder)
    try:
        yield clients
    finally:
        clients.close()
