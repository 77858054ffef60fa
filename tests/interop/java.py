"""Drives real RocketMQ in a JVM: stores, brokers, name servers, clients, mqadmin (`java/*.java`)."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, Self

from attrs import frozen

from tests.interop.rocketmq import class_path, home_flags, indexes_tags, is_5, java_tool
from tests.node_process import FILE_BYTES
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT, environment_of_ours

START_WITHIN_S = 90.0
"""For a JVM that has nothing to do but to say that it is there: on an idle machine it takes a second."""

OPENED = [
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang", "java.util")
    ),
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]
"""What RocketMQ needs of the JDK's own."""
_JVM_FLAGS = [
    "-Xms48m", "-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Xss512k", "-Xshare:auto", *OPENED,
]  # fmt: skip

# Quiet but not dumb: what RocketMQ warns about ends in the driver's log, which is shown when a call fails.
LOGBACK = """\
<configuration>
  <appender name="STDERR" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} %msg%n%ex{3}</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDERR"/></root>
</configuration>
"""

PATIENT: dict[str, object] = {
    # What waits for a thread for 0.2 s is refused as SYSTEM_BUSY otherwise,
    "brokerFastFailureEnable": False,
    # and every put while another one takes more than 1 s.
    "osPageCacheBusyTimeOutMills": 60_000,
}
"""Settings of a broker that refuses nothing because its machine is busy."""

# Small files and buffers; no disk, however full, makes the store refuse or delete.
_STORE_SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "maxMessageSize": 65536,
    "diskMaxUsedSpaceRatio": 99,
    "cleanFileForciblyEnable": False,
    "fileReservedTime": 720,
    **PATIENT,
    # After a kill an index file that is not full is deleted. It is built again from the first record that no
    # index file is left for; by default, from the log file on that the checkpoint asks for.
    "messageIndexSafe": True,
    "haListenPort": 0,
    "haSendHeartbeatInterval": 200,
    # No put times out because the machine is busy.
    "slaveTimeout": 10_000,
    "brokerClusterName": "interop",
    "brokerName": "interop",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
}


class JavaError(Exception):
    """RocketMQ, or the driver around it, failed; the text is the Java stack trace or the driver's log."""


@frozen
class JavaMessage:
    """A message as RocketMQ's own consume queue and decoder give it."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    """Of the whole record, in bytes."""
    record: Mapping[str, Any]
    """All that RocketMQ's decoder finds in the record, under the names of `trioha inspect --json`. The body
    is given by its length and by the CRC-32 & 0x7FFFFFFF that the driver computed over the bytes it read."""

    @classmethod
    def from_driver(cls, said: dict[str, Any]) -> JavaMessage:
        """One message of the driver's answer to `read`."""
        for key in ("bornHost", "storeHost"):
            address, port = ip_address(said[key][0]), said[key][1]
            said[key] = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        return cls(
            queue_id=said["queueId"],
            queue_offset=said["queueOffset"],
            physical_offset=said["physicalOffset"],
            size=said["size"],
            record=said,
        )


@frozen
class JavaQueues:
    """What one topic's consume queues hold."""

    bounds: Mapping[int, tuple[int, int]]
    """Queue id -> (min, max) queue offset."""
    messages: tuple[JavaMessage, ...]
    """In order of their physical offsets."""

    def gaps(self) -> list[str]:
        """Where a queue's offsets do not go up by one from its min to its max; empty if all is well."""
        found = []
        for queue_id, (first, end) in self.bounds.items():
            offsets = [message.queue_offset for message in self.messages if message.queue_id == queue_id]
            if offsets != list(range(first, end)):
                found.append(f"queue {queue_id} [{first}, {end}): {offsets}")
        return found


@frozen
class JavaPuts:
    """What became of a run of puts."""

    statuses: Mapping[str, int]
    end_offset: int
    """End of the last record appended; -1 if none was."""
    slowest_ms: int


class JavaDriver:
    """A JVM with one RocketMQ version in it, in which any number of stores can be open."""

    def __init__(
        self, version: str, *, folder: Path, system_properties: Mapping[str, str] | None = None
    ) -> None:
        self.version = version
        self._folder = folder
        self._calls: dict[int, Future[dict[str, Any]]] = {}
        self._calls_lock = threading.Lock()
        self._ids = count(1)
        self._stores: list[JavaStore] = []
        self._retired: list[Future[dict[str, Any]]] = []
        self._home = home = folder / "home"
        (home / "conf").mkdir(parents=True)
        logback = folder / "logback.xml"
        # mqadmin of 4.9.7 reads its own.
        for path in (logback, home / "conf" / "logback_tools.xml"):
            path.write_text(LOGBACK)
        self._log_path = folder / "driver.log"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT, java_tool("java"), *_JVM_FLAGS,
                    *home_flags(home),
                    f"-Drmq.logback.configurationFile={logback}", f"-Dlogback.configurationFile={logback}",
                    "-Drocketmq.client.logUseSlf4j=true",
                    # Consumers share out the queues of a new topic after up to 20 s by default.
                    "-Drocketmq.client.rebalance.waitInterval=300",
                    *(f"-D{key}={value}" for key, value in (system_properties or {}).items()),
                    "-cp", class_path(version), "interop.StoreDriver",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=environment_of_ours(),
                text=True,
                encoding="utf-8",
                bufsize=1,
            )  # fmt: skip
        ready = self._calls[0] = Future()
        self._reader = threading.Thread(target=self._read_answers, name=f"rocketmq-{version}", daemon=True)
        self._reader.start()
        try:
            ready.result(START_WITHIN_S)
        except (TimeoutError, JavaError) as problem:
            self.kill()
            raise JavaError(f"the {version} driver does not start: {problem!r}\n{self.log()}") from problem

    def log(self) -> str:
        """The last lines that RocketMQ and the JVM wrote."""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-60:])

    def submit(self, command: str, **fields: object) -> Future[dict[str, Any]]:
        """Start a command; its answer, or `JavaError`, comes through the future."""
        answer: Future[dict[str, Any]] = Future()
        call_id = next(self._ids)
        with self._calls_lock:
            self._calls[call_id] = answer
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"id": call_id, "do": command, **fields}) + "\n")
            stdin.flush()
        except OSError as gone:
            raise JavaError(f"the {self.version} driver is gone\n{self.log()}") from gone
        return answer

    def call(self, command: str, *, timeout_s: float = 150.0, **fields: object) -> dict[str, Any]:
        """Carry out a command and wait for its answer."""
        try:
            return self.submit(command, **fields).result(timeout_s)
        except TimeoutError:
            raise JavaError(
                f"{self.version}: no answer to {command} within {timeout_s} s\n{self.log()}"
            ) from None

    def counted(self, command: str, key: str, number: int, *, within_s: float, **fields: object) -> Any:
        """What `command` answers under `key` once it has `number` of it, or after `within_s`."""
        times = {"millis": int(within_s * 1000), "timeout_s": within_s + 10}
        return self.call(command, count=number, **times, **fields)[key]

    def open_store(
        self, root: Path, *, role: str, ha_master_address: str | None = None, **settings: object
    ) -> JavaStore:
        """Load and start a message store on `root`; `settings` are RocketMQ's own keys."""
        return self._open("start", root, role, ha_master_address, settings)

    def open_broker(
        self, root: Path, *, role: str, ha_master_address: str | None = None, **settings: object
    ) -> JavaStore:
        """Start a whole broker, without name server, on `root`."""
        return self._open("broker", root, role, ha_master_address, settings, listenPort=free_port())

    def _open(
        self,
        command: str,
        root: Path,
        role: str,
        ha_master_address: str | None,
        settings: dict[str, object],
        **fields: object,
    ) -> JavaStore:
        name = f"{root.name}-{next(self._ids)}"
        config = {
            **_STORE_SETTINGS,
            "brokerRole": role,
            "brokerId": 1 if role == "SLAVE" else 0,
            "storePathRootDir": str(root),
            "storePathCommitLog": str(root / "commitlog"),
            **settings,
        }
        if is_5(self.version):
            config = {"timerWheelEnable": False, "enableCompaction": False, **config}
        if indexes_tags(self.version):
            # 5.4 and newer recover the newest ten files only, however short, and delete the index of all.
            config = {"commitLogRecoverMaxNum": 1000, **config}
        answer = self.call(command, store=name, config=config, haMasterAddress=ha_master_address, **fields)
        store = JavaStore(
            driver=self,
            name=name,
            root=root,
            ha_port=answer["haPort"],
            listen_port=answer.get("listenPort"),
        )
        self._stores.append(store)
        return store

    def send(
        self, address: str, number: int, *, size: int = 1000, topic: str = "TopicTest"
    ) -> list[dict[str, Any]]:
        """Send messages to the queues 0 to 3 in turn with RocketMQ's own client.

        Says for each what the client was answered: sendStatus, msgId, offsetMsgId, queueId, queueOffset.
        """
        said = self.call("send", address=address, count=number, size=size, topic=topic, seed=1)
        results: list[dict[str, Any]] = said["results"]
        return results

    @contextmanager
    def name_server(self, folder: Path) -> Iterator[str]:
        """A name server of this version, its files in `folder`: its address, until the block ends."""
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.call("nameServer", store=str(folder), listenPort=port)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            self.call("endNameServer", store=str(folder))

    def mqadmin(self, command: str, name_servers: str, *arguments: str) -> str:
        """What `mqadmin COMMAND -n NAME_SERVERS ARGUMENTS` prints."""
        return str(self.call("mqadmin", arguments=[command, "-n", name_servers, *arguments])["printed"])

    @contextmanager
    def secured(
        self, access_key: str = "", secret_key: str = "", *, tls: bool = False, vip: bool = False
    ) -> Iterator[None]:
        """Sign with an account, use TLS, send to the second port inside the `with`. mqadmin only signs."""
        tools = self._home / "conf" / "tools.yml"
        if access_key:
            tools.write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")
        self.call("security", accessKey=access_key, secretKey=secret_key, tls=tls, vip=vip)
        try:
            yield
        finally:
            tools.unlink(missing_ok=True)
            self.call("security", accessKey="")

    def sends(
        self,
        name_server: str,
        number: int,
        *,
        topic: str,
        tags: str = "",
        prefix: str = "m",
        delay_level: int = 0,
        batch: int = 0,
        brokers: Sequence[str] = (),
        compression: str | None = None,
    ) -> list[Sent]:
        """Send messages with a DefaultMQProducer, bodies `prefix` and a number, keys `key` and the number.

        Each in turn goes to one of `brokers`, by name. Without them the client chooses: of a topic that its
        first send makes, it may then know of the broker of that one only.

        With `batch`, so many messages are sent together. `compression` of bodies of 4 KiB and more: LZ4, ZSTD
        or ZLIB, which only clients of 5.x can choose.
        """
        said = self.call(
            "produce",
            namesrv=name_server,
            group="interop-producer",
            count=number,
            topic=topic,
            tags=tags,
            prefix=prefix,
            delayLevel=delay_level,
            batch=batch,
            brokers=list(brokers),
            **({} if compression is None else {"compression": compression}),
        )
        return [Sent(*one) for one in said["results"]]

    def produce(self, name_server: str, number: int, *, topic: str, **options: Any) -> dict[str, int]:
        """As `sends`: how many messages have which status."""
        statuses: Counter[str] = Counter()
        for sent in self.sends(name_server, number, topic=topic, **options):
            statuses[sent.status] += sent.number
        return dict(statuses)

    @contextmanager
    def connected_producer(self, name_server: str, *, group: str, topic: str) -> Iterator[str]:
        """A producer that sends one message, and heartbeats until the block ends: the message's offset id."""
        name = f"producer-{next(self._ids)}"
        said = self.call("connect", name=name, namesrv=name_server, group=group, topic=topic)
        try:
            yield said["offsetId"]
        finally:
            self.call("disconnect", name=name)

    def consume(
        self,
        name_server: str,
        *,
        group: str,
        topic: str,
        mode: str = "concurrent",
        expression: str = "*",
        failures: int = 0,
        retry_level: int = 0,
        **settings: int,
    ) -> JavaConsumer:
        """Start a DefaultMQPushConsumer (concurrent, orderly, broadcast), or with lite a pull consumer.

        With pop the broker assigns its queues: clientRebalance is false.

        A push consumer's listener fails `failures` times with each message, and asks for the delay level
        `retry_level`. Its setting is maxReconsumeTimes.
        """
        name = f"consumer-{next(self._ids)}"
        self.call(
            "consume",
            name=name,
            namesrv=name_server,
            group=group,
            topic=topic,
            mode=mode,
            expression=expression,
            failures=failures,
            retryLevel=retry_level,
            **settings,
        )
        return JavaConsumer(self, name)

    @contextmanager
    def consuming(self, name_server: str, **options: Any) -> Iterator[JavaConsumer]:
        """As `consume`, until the block ends."""
        consumer = self.consume(name_server, **options)
        try:
            yield consumer
        finally:
            consumer.end()

    def consumed(self, name_server: str, number: int, *, group: str, topic: str) -> list[str]:
        """Bodies of `number` messages or more, which a new consumer receives from the start on."""
        with self.consuming(name_server, group=group, topic=topic) as consumer:
            return [message["body"] for message in consumer.received(number)]

    def ask(self, address: str) -> dict[str, Any]:
        """A broker by RocketMQ's own client: runtimeInfo, haStatus (absent in 4.9.7, which does not know it).

        `serializeType` says how the client writes its headers.
        """
        return self.call("ask", address=address)

    @contextmanager
    def stores_end_with_block(self) -> Iterator[None]:
        """Begin at its end to shut down what the block left open, so that it stops to dial and to listen."""
        before = len(self._stores)
        yield
        self._retired += [store.start_shutdown() for store in self._stores[before:] if store.is_open]
        del self._stores[before:]

    def hang(self) -> None:
        """Stop the JVM where it stands (SIGSTOP): its stores keep their connections and say nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a hung JVM go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`: every store in this JVM ends at once."""
        self._stores.clear()
        self._process.kill()
        self._finish()

    def close(self) -> None:
        """End the JVM, and report a shutdown that failed; stores that are still open end as in a crash.

        RocketMQ takes up to 10 s to shut down cleanly: only tests that open the store again wait for that.
        """
        if self._process.poll() is not None:
            return
        retired = [shutdown for shutdown in self._retired if shutdown.done()]
        stdin = self._process.stdin
        assert stdin is not None
        stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._finish()
        for shutdown in retired:
            shutdown.result()

    def _finish(self) -> None:
        self._process.wait(60)
        self._reader.join(60)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):  # a request that was never read: its caller has its error
                stream.close()

    def _read_answers(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            answer = json.loads(line)
            with self._calls_lock:
                call = self._calls.pop(answer["id"])
            if "error" in answer:
                call.set_exception(
                    JavaError(f"RocketMQ {self.version}: {answer['error']}\nIt logged:\n{self.log()}")
                )
            else:
                call.set_result(answer["result"])
        with self._calls_lock:
            lost, self._calls = self._calls, {}
        for call in lost.values():
            call.set_exception(JavaError(f"the {self.version} driver ended\n{self.log()}"))


@frozen
class Sent:
    """What became of one message, or of a batch of them, that a DefaultMQProducer sent."""

    status: str
    number: int
    """Of messages."""
    broker_name: str
    queue_id: int
    offset_id: str


@frozen
class JavaConsumer:
    """A running consumer."""

    driver: JavaDriver
    name: str

    def received(self, number: int, *, within_s: float = 120.0) -> list[dict[str, Any]]:
        """What it was given so far, in order; waits for `number` messages, but not longer than `within_s`.

        Each message with broker, queueId, queueOffset, body, tags, keys, reconsumeTimes, bornTimestamp and
        receivedTimestamp (ms since 1970).
        """
        messages: list[dict[str, Any]] = self.driver.counted(
            "received", "messages", number, within_s=within_s, name=self.name
        )
        return messages

    def end(self) -> list[dict[str, Any]]:
        """Shut it down: it commits its offsets and leaves its group. All that it was given, as `received`."""
        messages: list[dict[str, Any]] = self.driver.call("endConsumer", name=self.name)["messages"]
        return messages


class JavaStore:
    """An open RocketMQ message store (or broker)."""

    def __init__(
        self, *, driver: JavaDriver, name: str, root: Path, ha_port: int, listen_port: int | None
    ) -> None:
        self._driver = driver
        self._name = name
        self.root = root
        self.ha_port = ha_port
        self.listen_port = listen_port
        self.is_open = True

    @property
    def ha_address(self) -> str:
        """Where slaves connect, `host:port`."""
        return f"127.0.0.1:{self.ha_port}"

    @property
    def listen_address(self) -> str:
        """Where clients connect, `host:port`; only a broker has it."""
        assert self.listen_port is not None, "a bare store speaks no remoting"
        return f"127.0.0.1:{self.listen_port}"

    def put(self, number: int, *, timeout_s: float = 60.0, **options: Any) -> JavaPuts:
        """As `start_put`, to its end."""
        return self.start_put(number, **options).result(timeout_s)

    def start_put(
        self,
        number: int,
        *,
        size: tuple[int, int] = (10, 4000),
        topic: str = "TopicTest",
        queues: int = 4,
        seed: int = 1,
        prepared_every: int = 0,
        wait_store_msg_ok: bool = True,
        ipv6_born_hosts: bool = True,
        until_not_ok: bool = False,
    ) -> Future[JavaPuts]:
        """Put `number` messages with bodies of `size` bytes (both ends included), queue by queue in turn.

        Each `prepared_every`-th is a prepared one, which is in the log but in no consume queue (0: none is).
        Every fourth message has an IPv6 born host, unless `ipv6_born_hosts` says none. `until_not_ok` ends
        it with the first put that is not PUT_OK, and those that wait then.
        """
        answer = self._driver.submit(
            "put",
            store=self._name,
            count=number,
            sizeMin=size[0],
            sizeMax=size[1],
            topic=topic,
            queues=queues,
            seed=seed,
            preparedEvery=prepared_every,
            waitStoreMsgOK=wait_store_msg_ok,
            ipv6BornHosts=ipv6_born_hosts,
            untilNotOk=until_not_ok,
        )
        puts: Future[JavaPuts] = Future()

        def finish(done: Future[dict[str, Any]]) -> None:
            if (problem := done.exception()) is not None:
                puts.set_exception(problem)
                return
            said = done.result()
            puts.set_result(JavaPuts(said["statuses"], said["endOffset"], said["slowestMillis"]))

        answer.add_done_callback(finish)
        return puts

    def status(self) -> dict[str, int]:
        """minOffset, maxOffset, dispatchBehindBytes, haConnections, push2SlaveMaxOffset."""
        return self._driver.call("status", store=self._name)

    @property
    def max_offset(self) -> int:
        """End of the log, in bytes."""
        return self.status()["maxOffset"]

    @property
    def min_offset(self) -> int:
        """Start of the log, in bytes."""
        return self.status()["minOffset"]

    def wait(self, *, within_s: float = 120.0, **conditions: int | bool) -> dict[str, int]:
        """Wait for `maxOffset`, `push2SlaveMaxOffset` (at least), `haConnections` (exactly), `dispatched`."""
        said = self._driver.call(
            "wait", store=self._name, millis=int(within_s * 1000), timeout_s=within_s + 10, **conditions
        )
        if not said["reached"]:
            raise AssertionError(
                f"RocketMQ {self._driver.version}: {conditions} not reached within {within_s} s: {said}\n"
                f"{self._driver.log()}"
            )
        return said

    def read(self, topic: str = "TopicTest") -> JavaQueues:
        """Every message of `topic` through RocketMQ's own consume queues, once dispatch has caught up."""
        self.wait(dispatched=True)
        said = self._driver.call("read", store=self._name, topic=topic)
        messages = (JavaMessage.from_driver(message) for message in said["messages"])
        return JavaQueues(
            bounds={int(queue): (bounds[0], bounds[1]) for queue, bounds in said["queues"].items()},
            messages=tuple(sorted(messages, key=lambda message: message.physical_offset)),
        )

    def register(self) -> None:
        """Have the broker register now. 5.x may miss its name servers at the start, and tries after 10 s."""
        self._driver.call("register", store=self._name)

    def sync_metadata(self) -> bool:
        """Have a slave's broker copy its master's tables now: 5.x begins it 63 s after its start.

        Whether it knows its master's address, which comes with its registration.
        """
        return bool(self._driver.call("syncMetadata", store=self._name)["hasMaster"])

    def shutdown(self) -> None:
        """A clean stop."""
        if self.is_open:
            self.is_open = False
            self._driver.call("shutdown", store=self._name)

    def start_shutdown(self) -> Future[dict[str, Any]]:
        """A clean stop that the caller waits for later: RocketMQ takes seconds for it."""
        assert self.is_open
        self.is_open = False
        return self._driver.submit("shutdown", store=self._name)


@contextmanager
def java_driver(
    version: str, *, folder: Path, system_properties: Mapping[str, str] | None = None
) -> Iterator[JavaDriver]:
    """A JVM for as long as the block runs."""
    driver = JavaDriver(version, folder=folder, system_properties=system_properties)
    try:
        yield driver
    finally:
        driver.close()


class JavaDrivers:
    """A JVM for each version that is asked for, until the block ends."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._make_folder = make_folder
        self._running: dict[str, JavaDriver] = {}
        self._jvms = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._jvms.close()

    @contextmanager
    def lent(self, version: str) -> Iterator[JavaDriver]:
        """The JVM of a version. What the block leaves open is shut down after it."""
        if version not in self._running:
            jvm = java_driver(version, folder=self._make_folder())
            self._running[version] = self._jvms.enter_context(jvm)
        driver = self._running[version]
        with driver.stores_end_with_block():
            yield driver
