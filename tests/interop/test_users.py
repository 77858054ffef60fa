"""Users and access control lists beside a real broker: mqadmin, clients, decisions, copies, take-overs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from attrs import frozen

from tests.interop.asking import wait_for_groups
from tests.interop.controller import eventually
from tests.interop.java import JavaDriver, JavaError, JavaStore
from tests.interop.members import Member
from tests.interop.name_server import trioha_name_server
from tests.interop.replica_group import cluster, replica_group
from tests.interop.rocketmq import NEWEST
from tests.interop.world import StartNode, running
from tests.levels import by_level
from tests.node_process import Answer, TriohaNode, run_trioha
from tests.users import (
    ADMIN,
    ALICE,
    CHECKED,
    STATUS_CODES,
    asked,
    create_user,
    entry,
    put_acl,
    update_user,
    users_and_lists,
)
from tests.waiting import wait_until
from trioha.auth.stored import FILE_NAME
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.signature import Credentials, signed

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

CLUSTER = "interop"
SETTINGS: Final = {**CHECKED, "authenticationWhitelist": STATUS_CODES}


@frozen
class Users:
    """A real broker and a trioha node that check the same users, and a name server."""

    java: JavaDriver
    names: str
    real: JavaStore
    node: TriohaNode

    @property
    def addresses(self) -> tuple[str, str]:
        """Of the real broker and of the node."""
        return self.real.listen_address, self.node.listen_address


@pytest.fixture(scope="module")
def users(drivers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    """One world for the module; tests make users of their own."""
    folder = tmp_path_factory.mktemp("users")
    with drivers.lent(NEWEST) as java, trioha_name_server(folder / "names") as names:
        real = java.open_broker(
            folder / "real", role="ASYNC_MASTER", brokerName="broker-r", namesrvAddr=names, **SETTINGS
        )
        node = {"brokerName": "broker-t", "namesrvAddr": names}
        real.register()
        with running(folder / "trioha", role="ASYNC_MASTER", **node, **SETTINGS) as served:
            wait_for_groups(
                names, {"broker-r": {0: real.listen_address}, "broker-t": {0: served.listen_address}}
            )
            yield Users(java, names, real, served)


COMMANDS: Final = (
    ("createUser", "-u", "carol", "-p", "secret-of-carol", "-t", "Normal"),
    ("createUser", "-u", "carol", "-p", "secret-of-carol", "-t", "Normal"),
    ("createUser", "-u", "dave", "-p", "secret-of-dave", "-t", "Super"),
    ("updateUser", "-u", "carol", "-p", "secret-new"),
    ("updateUser", "-u", "dave", "-s", "disable"),
    ("updateUser", "-u", "nobody", "-s", "disable"),
    ("getUser", "-u", "carol"),
    ("getUser", "-u", "nobody"),
    ("listUser",),
    ("listUser", "-f", "aro"),
    ("createAcl", "-s", "User:carol", "-r", "Topic:Orders,Group:workers", "-a", "Pub,Sub", "-d", "Allow"),
    ("createAcl", "-s", "User:carol", "-r", "Topic:S*", "-a", "All", "-i", "10.0.0.0/8,::1", "-d", "Deny"),
    ("createAcl", "-s", "User:nobody", "-r", "Topic:*", "-a", "Pub", "-d", "Allow"),
    ("updateAcl", "-s", "User:carol", "-r", "Topic:Orders", "-a", "Sub", "-d", "Deny"),
    ("createAcl", "-s", "User:dave", "-r", "*", "-a", "Get", "-d", "Allow"),
    ("getAcl", "-s", "User:carol"),
    ("getAcl", "-s", "User:nobody"),
    ("listAcl",),
    ("listAcl", "-s", "carol"),
    ("listAcl", "-r", "S*"),
    ("deleteAcl", "-s", "User:carol", "-r", "Topic:Orders"),
    ("listAcl", "-s", "carol"),
    ("deleteAcl", "-s", "User:carol"),
    ("listAcl",),
    ("deleteUser", "-u", "carol"),
    ("deleteUser", "-u", "dave"),
    ("deleteUser", "-u", "nobody"),
    ("listUser",),
    ("listAcl",),
)


def test_mqadmin_prints_of_a_trioha_broker_what_it_prints_of_a_real_one(users: Users) -> None:
    lists = []
    with users.java.secured(ADMIN.access_key, ADMIN.secret_key):
        for command, *words in COMMANDS:
            printed = [
                users.java.mqadmin(command, users.names, "-b", address, *words).replace(address, "BROKER")
                for address in users.addresses
            ]
            assert printed[0] == printed[1], (command, *words)
            if command == "listAcl" and not words:
                lists.append(printed[0].count("User:"))
    # Of carol and dave; of nobody any more.
    assert lists[0] > lists[-1]


def test_mqadmin_copies_users_between_both_and_to_a_whole_cluster(users: Users) -> None:
    real, node = users.addresses
    with users.java.secured(ADMIN.access_key, ADMIN.secret_key):
        made = users.java.mqadmin(
            "createUser", users.names, "-c", CLUSTER, "-u", "erin", "-p", "secret-of-erin", "-t", "Normal"
        )
        assert made.count("success") == 2, made
        for source, target, name in ((real, node, "frank"), (node, real, "grace")):
            user = Credentials(name, f"secret-of-{name}")
            asked(source, create_user(user), put_acl(user, entry("Topic:a*", "Pub", sources=("10.0.0.1",))))
            users.java.mqadmin("copyUser", users.names, "-f", source, "-t", target, "-u", name)
            users.java.mqadmin("copyAcl", users.names, "-f", source, "-t", target, "-s", f"User:{name}")
    found = [users_and_lists(address) for address in users.addresses]
    assert found[0] == found[1]
    assert {"erin", "frank", "grace"} <= {user["username"] for user in found[0][0]}
    assert {"User:frank", "User:grace"} <= {acl["subject"] for acl in found[0][1]}
    for address in users.addresses:
        asked(address, *(request(3003, ext_fields={"username": name}) for name in ("erin", "frank", "grace")))


def test_java_clients_do_what_their_user_may(users: Users) -> None:
    """A producer and a consumer of a topic that only the trioha broker has."""
    node = users.node.listen_address
    java, names = users.java, users.names
    with java.secured(ADMIN.access_key, ADMIN.secret_key):
        for topic in ("UserOrders", "UserOther"):
            java.mqadmin("updateTopic", names, "-b", node, "-t", topic, "-r", "2", "-w", "2")
    asked(
        node,
        create_user(ALICE),
        put_acl(ALICE, entry("Topic:UserOrders", "Pub", "Sub"), entry("Group:UserWorkers", "Sub")),
    )
    with pytest.raises(JavaError, match="username cannot be null"):
        java.produce(names, 1, topic="UserOrders")
    with java.secured(ALICE.access_key, "wrong"), pytest.raises(JavaError, match="check signature failed"):
        java.produce(names, 1, topic="UserOrders")
    with java.secured("mallory", "secret"), pytest.raises(JavaError, match="User:mallory is not found"):
        java.produce(names, 1, topic="UserOrders")
    with java.secured(ALICE.access_key, ALICE.secret_key):
        assert java.produce(names, 4, topic="UserOrders") == {"SEND_OK": 4}
        refusal = "User:alice has no permission to access Topic:UserOther from 127.0.0.1, no matched policies"
        with pytest.raises(JavaError, match=refusal):
            java.produce(names, 1, topic="UserOther")
        assert len(java.consumed(names, 4, group="UserWorkers", topic="UserOrders")) == 4
    asked(node, update_user(ALICE, userStatus="disable"))
    with (
        java.secured(ALICE.access_key, ALICE.secret_key),
        pytest.raises(JavaError, match="User:alice is disabled"),
    ):
        java.produce(names, 1, topic="UserOrders")
    asked(node, request(3003, ext_fields={"username": ALICE.access_key}))


NAMES: Final = ("a", "ab", "abc", "abd", "b", "ba")
PATTERNS: Final = ("*", "Topic:*", "Group:*", "Cluster:*", "Cluster:interop", "Cluster:int*", "Cluster:other")
SOURCES: Final = ("127.0.0.1", "127.0.0.0/8", "10.0.0.0/8", "0.0.0.0/0", "127.0.0.2", "::1", "::/0")
ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


def random_entry(chance: random.Random) -> dict[str, Any]:
    """An entry of a list."""
    kind, name = chance.choice(("Topic", "Group")), chance.choice(NAMES)
    resource = chance.choice((f"{kind}:{name}", f"{kind}:{name}*", chance.choice(PATTERNS)))
    sources = chance.sample(SOURCES, chance.choice((0, 0, 1, 2)))
    return entry(
        resource,
        *chance.sample(ACTIONS, chance.choice((1, 1, 2, 4))),
        decision=chance.choice(("Allow", "Allow", "Deny")),
        sources=tuple(sources),
    )


def random_request(chance: random.Random) -> RemotingCommand:
    """A request of a client or tool, unsigned, whose handler changes no more than topics and offsets."""
    group, plain = chance.choice(NAMES), chance.choice(NAMES)
    # Of another group's retry topic trioha asks for both groups, on purpose.
    topic = chance.choice((chance.choice(NAMES), f"%RETRY%{group}"))
    of_both = {"topic": topic, "consumerGroup": group, "queueId": "0"}
    queues = [{"topic": topic, "brokerName": "b", "queueId": 0}]
    locks = {"consumerGroup": group, "clientId": "c", "mqSet": queues}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
    }
    heartbeat = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}
    sent = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": ""}
    code, fields, body = chance.choice(
        (
            (310, {**sent, "b": topic}, {}),
            (310, {**sent, "b": plain}, {}),
            (11, {**of_both, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0",
                  "suspendTimeoutMillis": "0", "subVersion": "0"}, {}),
            (12, {"topic": plain, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}, {}),
            (14, of_both, {}),
            (15, {**of_both, "commitOffset": "0"}, {}),
            (17, {"topic": plain, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
                  "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}, {}),
            (28, {}, {}),
            (30, {"topic": plain, "queueId": "0"}, {}),
            (31, {"topic": topic, "queueId": "0"}, {}),
            (34, {}, heartbeat),
            (35, {"clientID": "c1", "consumerGroup": group}, {}),
            (38, {"consumerGroup": group}, {}),
            (41, {}, locks),
            (42, {}, locks),
            (45, {}, {}),
            (202, {"topic": plain}, {}),
            (203, {"consumerGroup": group}, {}),
            (204, {"producerGroup": group}, {}),
            (208, {"consumerGroup": group, "topic": plain}, {}),
            (222, {"topic": plain, "group": group, "timestamp": "0", "isForce": "true"}, {}),
            (300, {"topic": plain}, {}),
            (351, {"topic": plain}, {}),
            (352, {"group": group}, {}),
            (3005, {"filter": "none"}, {}),
            (3003, {"username": "nobody"}, {}),
        )
    )  # fmt: skip
    return request(code, ext_fields=fields, body=json.dumps(body).encode() if body else b"")


async def ask_all(address: str, commands: list[RemotingCommand]) -> list[RemotingCommand]:
    """The answers to signed and unsigned requests, one after the other."""
    async with open_client(address) as client:
        return [await client.request(command, timeout_s=60) for command in commands]


@pytest.mark.sized
def test_random_users_lists_and_requests_are_decided_as_by_a_real_broker(users: Users) -> None:
    number = by_level(200, 1000, 10_000)
    chance = random.Random(7)
    people = [Credentials(f"user-{number}", f"secret-of-user-{number}") for number in range(12)]
    setup: list[RemotingCommand] = []
    for user in people:
        setup.append(create_user(user, kind=chance.choice(("Normal", "Normal", "Normal", "Super"))))
        if chance.random() < 0.1:
            setup.append(update_user(user, userStatus="disable"))
        setup += (
            put_acl(user, *(random_entry(chance) for _ in range(chance.randrange(1, 7))))
            for _ in range(chance.choice((0, 1, 1, 2)))
        )
    requests = []
    for _ in range(number):
        command = random_request(chance)
        user = chance.choice(people)
        kind = chance.random()
        if kind < 0.9:
            command = signed(command, user)
        elif kind < 0.95:
            command = signed(command, Credentials(user.access_key, "wrong"))
        elif kind < 0.97:
            command = signed(command, Credentials("mallory", "wrong"))
        requests.append(command)
    for address in users.addresses:
        for answer in asked(address, *setup):
            assert answer.code == ResponseCode.SUCCESS, answer
    assert users_and_lists(users.addresses[0]) == users_and_lists(users.addresses[1])
    real, ours = (trio.run(ask_all, address, requests) for address in users.addresses)
    refused = {
        (answer.code, answer.remark)
        for answer in real
        if answer.code == ResponseCode.NO_PERMISSION and "no permission to access" in (answer.remark or "")
    }
    differences = [
        (command.code, dict(command.ext_fields), bytes(command.body), theirs.remark, mine.remark)
        for command, theirs, mine in zip(requests, real, ours, strict=True)
        if verdict(theirs) != verdict(mine)
    ]
    assert differences == []
    # Both answers occur, in number.
    served = sum(answer.code != ResponseCode.NO_PERMISSION for answer in real)
    assert number / 10 < served < number * 9 / 10
    assert len(refused) > 10
    for address in users.addresses:
        asked(address, *(request(3003, ext_fields={"username": user.access_key}) for user in people))


def verdict(answer: RemotingCommand) -> str | None:
    """The remark of a refusal by access control; None for a request that its handler has answered."""
    return answer.remark if answer.code == ResponseCode.NO_PERMISSION else None


def test_a_trioha_slave_has_the_users_of_a_real_master_when_it_is_promoted(
    users: Users, start_node: StartNode
) -> None:
    slave = start_node(
        "slave",
        role="SLAVE",
        ha_master_address=users.real.ha_address,
        brokerName="broker-r",
        **{"trioha.masterAddress": users.real.listen_address},
        **{"trioha.metadataSyncFirst": 50, "trioha.metadataSyncPeriod": 100},
        **SETTINGS,
    )
    user = Credentials("heidi", "secret-of-heidi")
    asked(users.real.listen_address, create_user(user), put_acl(user, entry("Topic:Orders", "Pub")))
    both = users_and_lists(users.real.listen_address)
    wait_until(lambda: users_and_lists(slave.listen_address) == both, "the slave has the users")
    slave.stop()
    promoted = start_node("slave", role="ASYNC_MASTER", brokerName="broker-r", **SETTINGS)
    assert users_and_lists(promoted.listen_address) == both
    sent = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": ""}
    (allowed,) = asked(
        promoted.listen_address, request(310, ext_fields={**sent, "b": "Orders"}, body=b"x"), by=user
    )
    (refused,) = asked(
        promoted.listen_address, request(310, ext_fields={**sent, "b": "Other"}, body=b"x"), by=user
    )
    assert (allowed.code, refused.code) == (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION)
    asked(users.real.listen_address, request(3003, ext_fields={"username": "heidi"}))


def test_a_real_slave_of_a_trioha_master_signs_and_is_pushed_the_users(users: Users, tmp_path: Path) -> None:
    """RocketMQ's slaves copy none: what an operator does instead."""
    asked(users.node.listen_address, create_user(Credentials("ivan", "secret-of-ivan")))
    slave = users.java.open_broker(
        tmp_path / "slave",
        role="SLAVE",
        ha_master_address=users.node.ha_address,
        brokerName="broker-t",
        namesrvAddr=users.names,
        **SETTINGS,
    )
    users.node.wait(connections=1)
    # Its requests for topics and offsets are signed: none is refused.
    wait_until(slave.sync_metadata, "the slave knows its master")
    pushed = push_users(slave.listen_address, users.node.root, tmp_path)
    assert json.loads(pushed.stdout)["ok"]
    assert users_and_lists(slave.listen_address) == users_and_lists(users.node.listen_address)
    asked(users.node.listen_address, request(3003, ext_fields={"username": "ivan"}))


def push_users(address: str, store: Path, folder: Path) -> Answer:
    """Push the users of a store to a running broker."""
    tools = folder / "tools.yml"
    tools.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    return run_trioha("auth", "push", address, "--from", store, "--credentials", tools, "--json")


def test_stores_are_taken_over_in_both_directions(
    newest: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    """A real broker's store by a trioha node, and that store by a real broker again."""
    root = tmp_path / "store"
    real = newest.open_broker(root, role="ASYNC_MASTER", **SETTINGS)
    asked(
        real.listen_address,
        create_user(ALICE),
        put_acl(ALICE, entry("Topic:Orders", "Pub", sources=("127.0.0.0/8",)), entry("*", "Get")),
    )
    both = users_and_lists(real.listen_address)
    real.shutdown()
    imported = run_trioha("auth", "import", root, "--json")
    assert imported.exit_code == 0, imported
    assert json.loads(imported.stdout) == {"ok": True, "users": 3, "acls": 1}
    assert not list(root.rglob("rocksdict-config.json"))
    node = start_node("store", role="ASYNC_MASTER", **SETTINGS)
    assert users_and_lists(node.listen_address) == both
    bob = Credentials("bob", "secret-of-bob")
    asked(node.listen_address, create_user(bob), put_acl(bob, entry("Topic:Orders", "All")))
    both = users_and_lists(node.listen_address)
    node.stop()
    exported = run_trioha("auth", "export", root, "--replace", "--json")
    assert exported.exit_code == 0, exported
    assert json.loads(exported.stdout) == {"ok": True, "users": 4, "acls": 2}
    again = newest.open_broker(root, role="ASYNC_MASTER", **SETTINGS)
    assert users_and_lists(again.listen_address) == both
    sent = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": ""}
    codes = [
        asked(again.listen_address, request(310, ext_fields={**sent, "b": topic}, body=b"x"), by=bob)[0].code
        for topic in ("Orders", "Other")
    ]
    assert codes == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION]
    assert (root / "config" / FILE_NAME).is_file()
    again.shutdown()


BOB: Final = Credentials("bob", "secret-of-bob")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["trioha", "rocketmq"])
def test_users_outlive_both_changes_of_masters_in_controller_mode(kind: str, tmp_path: Path) -> None:
    """A trioha node follows a master of either kind, takes over when it dies, and is followed by it again."""
    unsigned = f"{STATUS_CODES},{RequestCode.GET_BROKER_EPOCH_CACHE.value}"
    settings = {**CHECKED, "authenticationWhitelist": unsigned}
    with (
        cluster(NEWEST, folder=tmp_path / "controllers") as controllers,
        replica_group(controllers, folder=tmp_path, broker_name=f"users-{kind}", **settings) as group,
    ):
        copies = {"trioha.metadataSyncFirst": 50, "trioha.metadataSyncPeriod": 100}
        first = group.join(kind, "first", **copies if kind == "trioha" else {})
        second = group.join("trioha", "second", **copies)
        group.wait_set(first, second)
        answers = asked(first.address, create_user(ALICE), put_acl(ALICE, entry("Topic:Orders", "Pub")))
        assert [answer.code for answer in answers] == [0, 0], answers
        # A real slave finds no consistent point with an epoch without messages.
        admits(first, ALICE)
        same_users(first, second)
        group.wait_equal(first, second)
        first.kill()
        assert group.wait_master(second) is second
        admits(second, ALICE)
        asked(second.address, create_user(BOB), put_acl(BOB, entry("Topic:Orders", "Pub")))
        first.start()
        group.wait_set(first, second)
        if kind == "trioha":
            same_users(second, first)
        else:
            pushed = push_users(first.address, second.root, tmp_path)
            assert json.loads(pushed.stdout)["ok"]
        second.kill()
        assert group.wait_master(first) is first
        admits(first, ALICE, BOB)


def same_users(master: Member, slave: Member) -> None:
    """Wait until a slave has its master's users and lists. Its connections end with each role."""

    def find() -> bool | None:
        return True if users_and_lists(slave.address) == users_and_lists(master.address) else None

    eventually(f"{slave.name} has the users", find, logs=slave.log)


def admits(master: Member, *users: Credentials) -> None:
    """Wait until a master accepts a send of each user, then check that it refuses what is not theirs."""
    sent = {"a": "P", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": ""}

    def code_of(topic: str, user: Credentials | None) -> int:
        (answer,) = asked(master.address, request(310, ext_fields={**sent, "b": topic}, body=b"x"), by=user)
        return answer.code

    for user in users:
        eventually(
            f"{master.name} stores a message of {user.access_key}",
            lambda user=user: True if code_of("Orders", user) == ResponseCode.SUCCESS else None,
            logs=master.log,
        )
        assert code_of("Other", user) == ResponseCode.NO_PERMISSION
    assert code_of("Orders", None) == ResponseCode.NO_PERMISSION
