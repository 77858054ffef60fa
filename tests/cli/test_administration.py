"""`trioha topic`, `group` and `message`, and kcat's habits in `trioha consume`, on a node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node_process import Answer, TriohaNode, call_trioha, wait_dispatched
from tests.ports import free_port
from tests.test_outside_text import CLIPBOARD
from trioha.cli.consume import parse_offset
from trioha.cli.message import place_of
from trioha.cli.message_format import parse_format
from trioha.client.consumer import Start, StartAt
from trioha.client.messages import ReceivedMessage
from trioha.errors import ConfigError
from trioha.remoting.route import MessageQueue
from trioha.store.record import Host, offset_message_id, parse_offset_message_id

NODE_NAME = "broker-a"


class Cluster:
    """A node with a name server in it, and the commands on it; each test has topics of its own."""

    def __init__(self, node: TriohaNode, names: str) -> None:
        self.node, self.names = node, names

    def run(self, *arguments: str) -> Answer:
        return call_trioha(*arguments, "--namesrv", self.names)

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.exit_code == 0, done
        return json.loads(done.stdout)

    def send(self, topic: str, *lines: dict[str, object]) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "trioha", "produce", topic, "--ndjson", "--namesrv", self.names],
            input="".join(json.dumps(line) + "\n" for line in lines).encode(),
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        wait_dispatched(self.node.listen_address)

    def consumed(self, *arguments: str) -> list[dict[str, Any]]:
        done = self.run("consume", *arguments)
        assert done.exit_code == 0, done
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    names = f"127.0.0.1:{free_port()}"
    settings = {"namesrvAddr": names, "trioha.withNamesrv": "true", "brokerName": NODE_NAME}
    folder = tmp_path_factory.mktemp("administration")
    node = TriohaNode(folder / "store", role="ASYNC_MASTER", **settings)
    yield Cluster(node, names)
    assert "Traceback" not in node.log()
    node.stop()


@pytest.mark.process
def test_a_topic_is_created_listed_changed_and_deleted(cluster: Cluster) -> None:
    assert cluster.json("topic", "create", "Made", "--queues", "2")["brokers"] == [
        {"brokerName": NODE_NAME, "address": cluster.node.listen_address}
    ]
    cluster.send("Made", *({"body": str(number)} for number in range(6)))
    queues = cluster.json("topic", "status", "Made")["queues"]
    assert [queue["queueId"] for queue in queues] == [0, 1]
    assert sum(queue["maxOffset"] for queue in queues) == 6
    shown = cluster.run("topic", "status", "Made")
    assert shown.stdout.count(NODE_NAME) == 2

    assert cluster.run("topic", "create", "Made", "--queues", "3", "--may", "r").exit_code == 0
    (listed,) = [one for one in cluster.json("topic", "list")["topics"] if one["topic"] == "Made"]
    assert (listed["readQueueNums"], listed["writeQueueNums"], listed["perm"]) == (3, 3, 4)

    assert cluster.json("topic", "delete", "Made")["done"] == "deleted"
    assert "Made" not in {one["topic"] for one in cluster.json("topic", "list", "--all")["topics"]}
    gone = cluster.run("topic", "delete", "Made")
    assert (gone.exit_code, gone.stdout) == (2, "")
    assert gone.stderr.endswith("there is no topic Made\n")


@pytest.mark.process
def test_system_topics_and_groups_are_listed_on_demand_only(cluster: Cluster) -> None:
    assert "TBW102" in {one["topic"] for one in cluster.json("topic", "list", "--all")["topics"]}
    assert "TBW102" not in {one["topic"] for one in cluster.json("topic", "list")["topics"]}
    assert "TOOLS_CONSUMER" in {one["group"] for one in cluster.json("group", "list", "--all")["groups"]}
    assert "TOOLS_CONSUMER" not in {one["group"] for one in cluster.json("group", "list")["groups"]}


@pytest.mark.process
def test_a_group_is_listed_with_its_lag_and_reset_to_the_first_and_last_messages(cluster: Cluster) -> None:
    cluster.json("topic", "create", "Read", "--queues", "1")
    cluster.send("Read", *({"body": str(number)} for number in range(5)))
    first = cluster.consumed("Read", "--group", "reading", "--from", "first", "--limit", "2")
    assert [one["body"] for one in first] == ["0", "1"]
    (listed,) = [one for one in cluster.json("group", "list")["groups"] if one["group"] == "reading"]
    assert (listed["lag"], listed["members"], listed["topics"]) == (3, 0, ["Read"])
    (queue,) = [one for one in cluster.json("group", "status", "reading")["queues"] if one["topic"] == "Read"]
    assert (queue["consumerOffset"], queue["brokerOffset"], queue["lag"]) == (2, 5, 3)

    assert cluster.run("group", "reset", "reading", "Read", "--to", "first").stdout == (
        f"reading: Read@{NODE_NAME}:0 continues at 0\n"
    )
    assert len(cluster.consumed("Read", "--group", "reading")) == 5
    (queue,) = cluster.json("group", "reset", "reading", "Read", "--to", "1700000000000")["queues"]
    assert queue["offset"] == 0
    (queue,) = cluster.json("group", "reset", "reading", "Read", "--to", "last")["queues"]
    assert queue["offset"] == 5
    assert cluster.consumed("Read", "--group", "reading") == []


@pytest.mark.process
def test_a_message_is_found_by_place_ids_and_key(cluster: Cluster) -> None:
    cluster.json("topic", "create", "Found", "--queues", "1")
    cluster.send(
        "Found",
        {"body": "first", "keys": ["order-1"]},
        {"body": CLIPBOARD, "keys": ["order-2"], "properties": {"by": CLIPBOARD}},
    )
    wanted = cluster.consumed("Found", "--from", "first")[1]
    place = f"Found@{NODE_NAME}:0:1"
    by_place = cluster.json("message", "get", place)
    assert by_place == wanted
    assert cluster.json("message", "get", wanted["offsetMsgId"]) == wanted
    assert cluster.json("message", "get", wanted["msgId"], "--topic", "Found") == wanted
    assert cluster.json("message", "query", "Found", "order-2") == wanted
    shown = cluster.run("message", "get", place)
    assert "\x1b" not in shown.stdout
    assert place in shown.stdout
    assert "order-2" in shown.stdout
    assert "order-1" in cluster.run("message", "query", "Found", "order-1").stdout
    # At the broker itself, without its name server.
    direct = call_trioha(
        "message", "get", wanted["offsetMsgId"], "--broker", cluster.node.listen_address, "--json"
    )
    assert json.loads(direct.stdout)["body"] == CLIPBOARD
    raw = subprocess.run(
        [sys.executable, "-m", "trioha", "message", "get", place, "--raw-body", "--namesrv", cluster.names],
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert raw.stdout == CLIPBOARD.encode()


@pytest.mark.process
def test_what_is_not_there_is_one_line(cluster: Cluster) -> None:
    cluster.json("topic", "create", "Empty", "--queues", "1")
    stored_elsewhere = "C0000207" + "00002A9F" + "0" * 16
    for arguments, code, line in (
        (("message", "get", f"Empty@{NODE_NAME}:0:7"), 1, f"there is no message Empty@{NODE_NAME}:0:7"),
        (("message", "get", "Empty@other:0:7"), 2, f"no broker other has Empty, but {NODE_NAME}"),
        (("message", "get", stored_elsewhere), 2, "192.0.2.7:10911, which is no broker of the cluster"),
        (("message", "query", "Empty", "k"), 1, "there is no message of Empty with the key k"),
        (("topic", "status", "Nothing"), 2, "there is no topic Nothing"),
        (("group", "reset", "nobody", "Empty", "--to", "first"), 2, "Group nobody does not exist"),
    ):
        done = cluster.run(*arguments)
        assert (done.exit_code, done.stdout) == (code, ""), done
        assert line in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_consume_takes_the_options_of_kcat(cluster: Cluster) -> None:
    cluster.json("topic", "create", "Kcat", "--queues", "1")
    cluster.send("Kcat", *({"body": f"b{number}", "keys": [f"k{number}"]} for number in range(12)))
    assert [one["body"] for one in cluster.consumed("Kcat", "-o", "-2", "-e")] == ["b10", "b11"]
    assert [one["body"] for one in cluster.consumed("Kcat", "-o", "9", "-c", "2")] == ["b9", "b10"]
    assert len(cluster.consumed("Kcat", "-o", "-100")) == 12
    assert len(cluster.consumed("Kcat", "-o", "beginning")) == 12
    assert cluster.consumed("Kcat", "-o", "100") == []
    done = cluster.run("consume", "Kcat", "-o", "-1", "-e", "-f", r"%t %p %o %k %s\n")
    assert done.stdout == "Kcat 0 11 k11 b11\n"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", StartAt(Start.FIRST)),
        ("end", StartAt(Start.LAST)),
        ("0", StartAt(Start.OFFSET)),
        ("7", StartAt(Start.OFFSET, offset=7)),
        ("-10", StartAt(Start.BEFORE_END, offset=10)),
    ],
)
def test_an_offset_is_a_word_a_place_or_a_number_before_the_end(text: str, start: StartAt) -> None:
    assert parse_offset(text) == start


@pytest.mark.parametrize("text", ["", "stored", "1.5", "--1", "99999999999999999999"])
def test_another_offset_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--offset: .*write beginning"):
        parse_offset(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "T", "--follow", "-e"),
        ("consume", "T", "--from", "first", "-o", "3"),
        ("consume", "T", "-f", "%q"),
        ("consume", "T", "-f", r"\q"),
        ("message", "get", "no id"),
        ("message", "query", "T", "k", "--limit", "65"),
        ("topic", "create", "a b"),
        ("topic", "create", "T", "--queues", "0"),
        ("group", "reset", "g", "T", "--to", "begin"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_asked(refusal, arguments) -> None:
    assert refusal(*arguments).startswith("trioha: ")


RECEIVED = ReceivedMessage(
    MessageQueue("T", "a", 3),
    7,
    CLIPBOARD.encode(),
    {"KEYS": "k1 k2", "TAGS": "x", "UNIQ_KEY": "id", "a": "b", "c": CLIPBOARD},
    "0A00000100002A9F00000000000003E8",
    111,
    222,
)


def test_each_token_of_a_format_has_its_value_and_text_from_outside_is_escaped() -> None:
    shown = r"\x1b]52;c;cm0gLXJm\x07"
    for text, value in (
        ("%t|%p|%o|%b|%i|%g|%T", "T|3|7|a|id|x|222"),
        ("%k %K", "k1 k2 5"),
        ("%h", f"a=b,c={shown}"),
        ("%s", shown),
        ("%S", str(len(CLIPBOARD))),
        (r"100%%\t\x41\\\n", "100%\tA\\\n"),
        ("", ""),
    ):
        assert parse_format(text, raw_bodies=False)(RECEIVED) == value.encode()
    assert parse_format(r"%s\0", raw_bodies=True)(RECEIVED) == CLIPBOARD.encode() + b"\0"


@pytest.mark.parametrize("text", ["%q", "%", "\\", r"\q", r"\x4"])
def test_a_format_with_an_unknown_token_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--format"):
        parse_format(text, raw_bodies=False)


def test_a_place_is_a_queue_and_an_offset_and_brokers_may_be_addresses() -> None:
    assert place_of("T@broker-a:3:7") == (MessageQueue("T", "broker-a", 3), 7)
    assert place_of("T@127.0.0.1:10911:3:7") == (MessageQueue("T", "127.0.0.1:10911", 3), 7)
    assert place_of("0A00000100002A9F00000000000003E8") is None
    with pytest.raises(ConfigError, match="within"):
        place_of("T@a:99999999999:7")


@pytest.mark.parametrize("address", ["10.0.0.1", "2001:db8::5"])
def test_an_offset_message_id_is_read_as_it_is_made(address: str) -> None:
    host = Host.parse(address, 10911)
    assert parse_offset_message_id(offset_message_id(host.packed, 1 << 40)) == (host, 1 << 40)


@pytest.mark.parametrize(
    "text", ["", "0A", "0A 00000100002A9F00000000000003E8", "x" * 32, "0" * 32, "F" * 32, "0" * 33]
)
def test_another_text_is_no_offset_message_id(text: str) -> None:
    with pytest.raises(ValueError, match="offset message id"):
        parse_offset_message_id(text)
