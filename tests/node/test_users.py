"""Nodes that check users and access control lists: a slave's copy, restarts, and where secrets are."""

import json
import stat
from functools import partial

import pytest

from tests.node.wire import pull_from, send_to
from tests.node_process import run_node, run_trioha
from tests.users import (
    ADMIN,
    ALICE,
    CHECKED,
    INNER,
    PROVIDERS,
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
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.signature import Credentials

pytestmark = pytest.mark.process

QUICK = {"trioha.metadataSyncFirst": 50, "trioha.metadataSyncPeriod": 100}
OPEN = {"authenticationWhitelist": STATUS_CODES}
SECRETS = [each.secret_key for each in (ADMIN, INNER, ALICE)]


@pytest.fixture
def start(start_node):
    return partial(start_node, **QUICK, **CHECKED, **OPEN)


def outcome(address, command, by=None):
    (answer,) = asked(address, command, by=by)
    return ResponseCode(answer.code).name, (answer.remark or "").partition(", ")[0]


def test_a_slave_copies_users_enforces_them_and_keeps_them_as_master(start, tmp_path):
    recordings = {"trioha.recordDir": tmp_path / "recordings"}
    master = start("master", role="ASYNC_MASTER", **recordings)
    slave = start("slave", slave_of=master, **{"trioha.masterAddress": master.listen_address}, **recordings)
    for node in (master, slave):
        assert outcome(node.listen_address, send_to("Orders", b"1")) == (
            "NO_PERMISSION",
            "username cannot be null.",
        )
    made = asked(
        master.listen_address,
        create_user(ALICE),
        put_acl(ALICE, entry("Topic:Orders", "Pub", "Sub"), entry("Group:readers", "Sub")),
    )
    assert [answer.code for answer in made] == [0, 0]
    assert outcome(master.listen_address, send_to("Orders", b"1"), ALICE)[0] == "SUCCESS"
    assert outcome(master.listen_address, send_to("Other", b"1"), ALICE) == (
        "NO_PERMISSION",
        "User:alice has no permission to access Topic:Other from 127.0.0.1",
    )
    both = users_and_lists(master.listen_address)
    assert {user["username"] for user in both[0]} == {"admin", "alice", "inner"}
    wait_until(lambda: users_and_lists(slave.listen_address) == both, "the slave has the users")
    assert outcome(slave.listen_address, pull_from("Orders", 0), Credentials("alice", "wrong")) == (
        "NO_PERMISSION",
        "check signature failed.",
    )
    assert outcome(slave.listen_address, pull_from("Orders", 0), ALICE)[0] != "NO_PERMISSION"

    # What is changed at the slave alone lasts until the next copy.
    asked(slave.listen_address, create_user(Credentials("passing", "secret-p")))
    wait_until(lambda: users_and_lists(slave.listen_address) == both, "the slave is as its master again")

    # A user that the master disables may do nothing at the slave.
    asked(master.listen_address, update_user(ALICE, userStatus="disable"))
    disabled = ("NO_PERMISSION", "User:alice is disabled.")
    wait_until(lambda: outcome(slave.listen_address, pull_from("Orders", 0), ALICE) == disabled)
    asked(master.listen_address, update_user(ALICE, userStatus="enable"))
    wait_until(lambda: users_and_lists(slave.listen_address) == both)
    status = json.loads(
        run_trioha("status", "--json", slave.listen_address, "--credentials", tools(tmp_path)).stdout
    )
    copied = status["brokers"][0]["metadata"]["tables"]["users"]
    assert (copied["entries"], copied["error"]) == (3, "")

    # The master is lost: its slave, started as master, admits the same users.
    master.kill()
    slave.stop()
    promoted = start("slave", role="ASYNC_MASTER", **recordings)
    assert users_and_lists(promoted.listen_address) == both
    assert outcome(promoted.listen_address, send_to("Orders", b"2"), ALICE)[0] == "SUCCESS"
    assert outcome(promoted.listen_address, send_to("Orders", b"2"))[0] == "NO_PERMISSION"
    promoted.stop()

    # Secrets are in the files of users, which others cannot read, and in broker.conf.
    with_secrets = {
        path
        for path in tmp_path.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and any(secret.encode() in path.read_bytes() for secret in SECRETS)
    }
    confs = {path for path in with_secrets if path.suffix in {".conf", ".yml"}}
    files = with_secrets - confs
    assert {path.name.removesuffix(".bak") for path in files} == {FILE_NAME}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert "Traceback" not in promoted.log_path.read_text()


def tools(folder):
    path = folder / "tools.yml"
    path.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    return path


def test_a_refused_copy_changes_nothing_at_the_slave(start, start_node, tmp_path):
    master = start_node("master", role="ASYNC_MASTER", **CHECKED, **OPEN)
    stranger = {
        "innerClientAuthenticationCredentials": '{"accessKey":"stranger","secretKey":"secret-of-stranger"}'
    }
    slave = start_node(
        "slave",
        slave_of=master,
        **{**QUICK, **CHECKED, **stranger, **OPEN, "trioha.masterAddress": master.listen_address},
    )
    slave.wait_logged("metadata cannot be copied")
    users, lists = users_and_lists(slave.listen_address)
    assert ({user["username"] for user in users}, lists) == ({"admin", "stranger"}, None)
    shown = run_trioha("status", "--json", slave.listen_address, "--credentials", tools(tmp_path)).stdout
    error = json.loads(shown)["brokers"][0]["metadata"]["tables"]["users"]["error"]
    assert "User:stranger is not found." in error
    assert "secret-of-stranger" not in slave.log_path.read_text()


def test_users_are_kept_without_a_check_and_migrated_from_a_plain_acl(start_node, tmp_path):
    conf = tmp_path / "home" / "conf"
    (conf / "acl").mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: old-admin, secretKey: secret-1, admin: true}\n"
        "- accessKey: old-user\n  secretKey: secret-2\n  defaultTopicPerm: SUB\n"
        "  topicPerms: [Orders=PUB|SUB, Logs=DENY]\n  groupPerms: [workers=SUB]\n"
    )
    (conf / "acl" / "more.yml").write_text("accounts: [{accessKey: another, secretKey: secret-3}]\n")
    settings = {**PROVIDERS, "rocketmqHome": tmp_path / "home", "migrateAuthFromV1Enabled": "true"}
    node = start_node("node", role="ASYNC_MASTER", **settings)
    # Nobody is checked.
    assert outcome(node.listen_address, send_to("Orders", b"1"))[0] == "SUCCESS"
    users, lists = users_and_lists(node.listen_address)
    assert [(user["username"], user["userType"]) for user in users] == [
        ("another", "Normal"),
        ("old-admin", "Super"),
        ("old-user", "Normal"),
    ]
    (acl,) = lists
    assert acl["subject"] == "User:old-user"
    found = {
        (policy["policyType"], each["resource"], *each["actions"], each["decision"])
        for policy in acl["policies"]
        for each in policy["entries"]
    }
    assert found == {
        ("Custom", "Topic:Orders", "Pub", "Sub", "Allow"),
        ("Custom", "Topic:Logs", "All", "Deny"),
        ("Custom", "Group:workers", "Sub", "Allow"),
        ("Default", "Topic:*", "Sub", "Allow"),
    }
    asked(node.listen_address, update_user(Credentials("old-user", ""), password="secret-new"), by=None)
    node.stop()
    again = start_node("node", role="ASYNC_MASTER", **settings)
    users, _ = users_and_lists(again.listen_address)
    assert {user["password"] for user in users} == {"secret-1", "secret-new", "secret-3"}


def test_without_a_provider_there_are_no_users(start_node):
    node = start_node("node", role="ASYNC_MASTER")
    assert outcome(node.listen_address, request(RequestCode.AUTH_LIST_USER))[0] == (
        "REQUEST_CODE_NOT_SUPPORTED"
    )
    assert not (node.root / "config" / FILE_NAME).exists()


def test_a_damaged_file_of_users_ends_the_start_with_one_line(tmp_path):
    path = tmp_path / "store" / "config" / FILE_NAME
    path.parent.mkdir(parents=True)
    path.write_text('{"version":1,"users":{"alice":{"password":"secret-of-alice"')
    answer = run_node(tmp_path / "store", role="ASYNC_MASTER", **CHECKED)
    assert answer.exit_code != 0
    last = answer.stderr.splitlines()[-1]
    assert "has users that cannot be used: the file is not JSON" in last
    assert "secret-of-alice" not in answer.stderr
