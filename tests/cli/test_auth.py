"""`trioha auth`: stores of RocksDB, and users for a running node."""

import json
import stat
import sys

import pytest

from tests.users import ADMIN, ALICE, CHECKED, users_and_lists
from trioha.auth.bodies import acl_of_request
from trioha.auth.model import User, UserStatus, UserType
from trioha.auth.stored import FILE_NAME
from trioha.auth.tables import AuthTables
from trioha.broker.auth_store import auth_file, read_tables, write_tables
from trioha.broker.rocksdb_users import read_rocksdb
from trioha.cli import main

TABLES = AuthTables(
    {
        "admin": User("admin", ADMIN.secret_key, UserType.SUPER),
        "alice": User("alice", ALICE.secret_key),
        "zoë": User("zoë", "secret-of-zoë", UserType.NORMAL, UserStatus.DISABLE),
    },
    {
        "alice": acl_of_request(
            "User:alice",
            b'{"policies":[{"entries":[{"resource":"Topic:Orders","actions":["Pub"],"decision":"Allow",'
            b'"sourceIps":["127.0.0.0/8"]},{"resource":"Group:*","actions":["Sub"],"decision":"Deny"}]}]}',
        )
    },
)


@pytest.fixture
def store(tmp_path):
    """A stopped store with users."""
    write_tables(auth_file(tmp_path / "store"), TABLES)
    return tmp_path / "store"


def test_what_is_exported_is_imported_again(store, capsys):
    assert main(["auth", "export", str(store)]) == 0
    assert capsys.readouterr().out == f"exported 3 users and 1 access control list: {store}\n"
    config = store / "config"
    assert sorted(path.name for path in config.iterdir()) == ["acls", FILE_NAME, "users"]
    for folder in (config / "users", config / "acls"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
        assert not (folder / "rocksdict-config.json").exists()
    before = {path: path.read_bytes() for path in config.rglob("*") if path.is_file()}
    auth_file(store).unlink()
    assert main(["auth", "import", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "users": 3, "acls": 1}
    assert read_tables(auth_file(store)) == TABLES
    # What was read is as it was.
    del before[auth_file(store)]
    assert before == {path: path.read_bytes() for path in before}
    assert len(before) + 1 == len([path for path in config.rglob("*") if path.is_file()])


def test_what_is_there_is_replaced_only_when_asked(store, capsys):
    assert main(["auth", "export", str(store)]) == 0
    assert main(["auth", "export", str(store)]) == 2
    assert "config/users: is there already; --replace replaces it" in capsys.readouterr().err
    write_tables(auth_file(store), AuthTables(dict(list(TABLES.users.items())[:1])))
    assert main(["auth", "import", str(store)]) == 2
    assert f"{FILE_NAME}: is there already; --replace replaces it" in capsys.readouterr().err
    assert main(["auth", "export", str(store), "--replace"]) == 0
    assert list(read_rocksdb(store).users) == ["admin"]
    assert sorted(path.name for path in (store / "config").iterdir()) == [
        "acls",
        FILE_NAME,
        f"{FILE_NAME}.bak",
        "users",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "STORE/none"], "there is no folder config: not a store of a broker"),
        (["import", "STORE", "--replace"], "there is no store of users of a RocketMQ 5 broker"),
        (["export", "STORE", "--from", "x"], "--from: is for push alone"),
        (["push", "127.0.0.1:1"], "--from: is missing; name the storePathRootDir with the users"),
        (["push", "nowhere", "--from", "STORE"], "nowhere"),
        (["push", "127.0.0.1:1", "--from", "STORE/none"], "is not there: the store has no users"),
    ],
)
def test_what_cannot_be_done_is_one_line(store, capsys, arguments, said):
    assert main(["auth", *(word.replace("STORE", str(store)) for word in arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_damaged_store_is_refused(store, capsys):
    assert main(["auth", "export", str(store)]) == 0
    (store / "config/users/CURRENT").write_text("MANIFEST-999999\n")
    auth_file(store).unlink()
    assert main(["auth", "import", str(store)]) == 2
    said = capsys.readouterr().err
    assert "config/users: RocksDB cannot open it" in said
    assert ALICE.secret_key not in said
    assert not auth_file(store).exists()


def test_without_the_library_the_line_says_how_to_install_it(store, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert main(["auth", "export", str(store)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "RocksDB stores need rocksdict; " in line
    assert "pip install" in line


@pytest.mark.process
def test_users_are_pushed_to_a_running_node_and_a_store_in_use_is_refused(
    store, start_node, tmp_path, capsys
):
    node = start_node("node", role="ASYNC_MASTER", **CHECKED)
    tools = tmp_path / "tools.yml"
    tools.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
    pushing = ["auth", "push", node.listen_address, "--from", str(store), "--credentials", str(tools)]
    assert main([*pushing, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "users": 3,
        "acls": 1,
        "usersMade": 2,
        "usersChanged": 1,
    }
    users, lists = users_and_lists(node.listen_address)
    assert {user["username"]: user["userStatus"] for user in users} == {
        "admin": "enable",
        "alice": "enable",
        "inner": "enable",
        "zoë": "disable",
    }
    assert [len(each["policies"][0]["entries"]) for each in lists] == [2]
    assert main(pushing) == 0
    assert "pushed 3 users and 1 access control list" in capsys.readouterr().out
    # Only a Super user may.
    tools.write_text(f"accessKey: {ALICE.access_key}\nsecretKey: {ALICE.secret_key}\n")
    assert main(pushing) == 2
    said = capsys.readouterr().err
    assert "user admin: NO_PERMISSION (16): User:alice has no permission to access Cluster:interop" in said
    assert main(["auth", "export", str(node.root)]) == 2
    assert "the store is locked by another process" in capsys.readouterr().err
