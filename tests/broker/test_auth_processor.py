"""Requests 3001 to 3010 and the checks before them: recorded frames, refusals, what is on disk."""

import stat
from pathlib import Path

import pytest

from tests.remoting.recorded import VECTORS, commands
from trioha.auth.model import User, UserType
from trioha.auth.stored import decode_file
from trioha.broker.auth_processor import AuthProcessor
from trioha.broker.auth_store import AuthStore, auth_file, with_users
from trioha.broker.touched import Around
from trioha.broker.user_access import AccessSettings, UserAccess
from trioha.errors import StoreError
from trioha.remoting.address import Address
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, request, response_to
from trioha.remoting.serving import Peer
from trioha.remoting.signature import ACCESS_KEY, Credentials, signed

FRAMES = VECTORS / "acl-5.5.0"
PEER = Peer(Address("127.0.0.1", 5555), 1)
FIRST = (User("admin", "adminsecret", UserType.SUPER), User("inner", "innersecret", UserType.SUPER))


async def at_once(call):
    return call()


async def opened(folder: Path, users=FIRST) -> AuthStore:
    return await AuthStore.open(
        auth_file(folder), lambda tables: with_users(users, tables), in_thread=at_once
    )


def access(store: AuthStore, **settings) -> UserAccess:
    chosen = AccessSettings(**{"authentication": True, "authorization": True, **settings})
    return UserAccess(lambda: store.tables, chosen, Around("check", {7: "Theirs"}.get))


async def answer(store: AuthStore, asked: RemotingCommand, *, has_acls=True, peer=PEER, **settings):
    """The answer as the server makes it; a request that is none of users' is only checked."""
    handlers = AuthProcessor(store, has_acls=has_acls).handlers
    handler = handlers.get(asked.code, lambda asked, _: response_to(asked, ResponseCode.SUCCESS))
    try:
        said = access(store, **settings).guard(handler)(asked, peer)
        return said if isinstance(said, RemotingCommand) else await said
    except BadRequestError as refused:
        return response_to(asked, refused.code, remark=refused.reason)


def recorded() -> list[tuple[str, RemotingCommand, RemotingCommand]]:
    names = sorted(path.name.removesuffix(".request.bin") for path in FRAMES.glob("*.request.bin"))
    assert len(names) == 29
    return [
        (name, *(commands(FRAMES / f"{name}.{kind}.bin")[0] for kind in ("request", "response")))
        for name in names
    ]


async def test_recorded_requests_get_the_answers_of_the_real_broker(tmp_path):
    store = await opened(tmp_path)
    for name, asked, real in recorded():
        ours = await answer(store, asked)
        about_users = asked.code >= 3000
        remark = real.remark if about_users or real.code else None
        assert (name, ours.code, ours.remark) == (name, real.code, remark)
        if about_users:
            assert (name, bytes(ours.body)) == (name, bytes(real.body))
    # What was answered is on disk.
    assert decode_file(auth_file(tmp_path).read_bytes()) == store.tables
    assert set(store.tables.users) == {"admin", "alice", "inner"}


def test_recorded_requests_are_those_that_we_would_send():
    """Signed and encoded by us they have the fields and the signature of the real mqadmin."""
    secrets = {"admin": "adminsecret", "alice": "alicesecret"}
    checked = 0
    for name, asked, _ in recorded():
        user = asked.ext_fields.get(ACCESS_KEY)
        if user not in secrets or "wrong" in name or name.startswith("23"):
            continue
        fields = {
            key: value for key, value in asked.ext_fields.items() if key not in {ACCESS_KEY, "Signature"}
        }
        ours = signed(
            request(asked.code, ext_fields=fields, body=bytes(asked.body)), Credentials(user, secrets[user])
        )
        assert (name, dict(ours.ext_fields)) == (name, dict(asked.ext_fields))
        assert encode(ours, opaque=asked.opaque)
        checked += 1
    assert checked >= 20


async def test_the_file_is_for_its_owner_alone_and_survives_a_restart(tmp_path, caplog):
    store = await opened(tmp_path)
    await store.change(lambda tables: tables.without_user("inner"))
    path = auth_file(tmp_path)
    for file in (path, path.with_name("triohaAuth.json.bak")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    path.chmod(0o644)
    again = await opened(tmp_path, users=FIRST[:1])
    assert set(again.tables.users) == {"admin"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # A torn file is replaced by its backup; where both are damaged, nothing begins without users.
    path.write_bytes(b'{"version":1,')
    assert set((await opened(tmp_path, users=())).tables.users) == {"admin", "inner"}
    path.with_name("triohaAuth.json.bak").write_bytes(b"")
    path.write_bytes(b"{")
    with pytest.raises(StoreError, match="has users that cannot be used: the file is not JSON"):
        await opened(tmp_path)


async def test_a_user_that_is_there_keeps_its_password(tmp_path):
    await opened(tmp_path)
    again = await opened(tmp_path, users=(User("admin", "another", UserType.NORMAL), FIRST[1]))
    assert again.tables.users["admin"] == FIRST[0]


async def test_a_change_that_cannot_be_written_changes_nothing(tmp_path):
    store = await opened(tmp_path)
    before = store.tables
    folder = auth_file(tmp_path).parent

    async def full(call):
        raise OSError(28, "No space left on device")

    store._in_thread = full
    said = await answer(store, admin(RequestCode.AUTH_DELETE_USER, username="inner"))
    assert (said.code, said.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "users cannot be written: No space left on device",
    )
    assert store.tables is before
    assert decode_file((folder / "triohaAuth.json").read_bytes()) == before


def admin(code, body=b"", **fields) -> RemotingCommand:
    return signed(request(code, ext_fields=fields, body=body), Credentials("admin", "adminsecret"))


SUBJECT = {"subject": "User:alice"}
NORMAL = b'{"password":"alicesecret","userType":"Normal"}'


def acl_body(resource='"Topic:T"', actions='["Pub"]', decision='"Allow"', sources="null", kind="null"):
    return (
        f'{{"policies":[{{"policyType":{kind},"entries":[{{"resource":{resource},"actions":{actions},'
        f'"decision":{decision},"sourceIps":{sources}}}]}}]}}'
    ).encode()


@pytest.mark.parametrize(
    ("asked", "code", "remark"),
    [
        (admin(3001, NORMAL), 29, "The username is blank"),
        (admin(3001, NORMAL, username=" "), 16, "username can not be blank"),
        (admin(3001, b"{}", username="bob"), 16, "password can not be blank"),
        (admin(3001, b'{"password":" "}', username="bob"), 16, "password can not be blank"),
        (admin(3001, b'{"password":7}', username="bob"), 1, "the password is not a text"),
        (admin(3001, b"", username="bob"), 1, "the body is not JSON"),
        (admin(3001, b'{"password":"bobsecret', username="bob"), 1, "the body is not JSON"),
        (admin(3001, b"[]", username="bob"), 1, "the body is not an object"),
        (admin(3001, b'{"password":"' + b"x" * 2000 + b'"}', username="bob"), 16, None),
        (admin(3002, b"{}", username="bob"), 16, "The user is not exist"),
        (admin(3003), 16, "username can not be blank"),
        (admin(3003, username="bob"), 0, None),
        (admin(3004), 29, "The username is blank"),
        (admin(3006, acl_body()), 16, "The subject type is null."),
        (admin(3006, b"{}", **SUBJECT), 1, "The body of acl is null"),
        (admin(3006, b'{"policies":[{"entries":[]}]}', **SUBJECT), 16, "The policies is empty."),
        (admin(3006, acl_body(), subject="User:bob"), 16, "The subject of User:bob is not exist."),
        (admin(3006, acl_body(resource='"T"'), **SUBJECT), 16, "The resource is null."),
        (admin(3006, acl_body(resource="7"), **SUBJECT), 16, "The resource is null."),
        (admin(3006, acl_body(actions="[]"), **SUBJECT), 16, "The actions is empty."),
        (admin(3006, acl_body(actions='["Nothing"]'), **SUBJECT), 16, "The actions is empty."),
        (admin(3006, acl_body(actions='["Any"]'), **SUBJECT), 16, "The actions can not be Any."),
        (admin(3006, acl_body(decision='"Maybe"'), **SUBJECT), 16, "The decision is null or illegal."),
        (admin(3006, acl_body(sources='[""]'), **SUBJECT), 16, "The source ip is empty."),
        (admin(3006, acl_body(sources='["a"]'), **SUBJECT), 16, "The source ip is invalid."),
        (admin(3006, acl_body(sources='"127.0.0.1"'), **SUBJECT), 16, "The source ip is invalid."),
        (admin(3006, acl_body(kind='"Default"'), **SUBJECT), 0, None),
        (admin(3008, **SUBJECT), 16, "The acl is not exist."),
        (admin(3008, subject="User:bob"), 16, "The subject is not exist."),
        (admin(3008, subject="alice"), 16, "The subject is null."),
        (admin(3008, **SUBJECT, resource="x"), 16, "The resource is null."),
        (admin(3009, subject="User:bob"), 16, "The subject is not exist."),
        (admin(3009, **SUBJECT), 0, None),
        (admin(3010), 0, None),
    ],
)
async def test_each_request_is_refused_as_by_a_real_broker(tmp_path, asked, code, remark):
    store = await opened(tmp_path)
    await answer(store, admin(3001, NORMAL, username="alice"))
    before = store.tables
    said = await answer(store, asked)
    assert said.code == code
    if remark is not None:
        assert said.remark == remark
    if code:
        assert store.tables is before
    assert "bobsecret" not in (said.remark or "")


async def test_only_super_users_make_change_and_delete_super_users(tmp_path):
    store = await opened(tmp_path)
    await answer(store, admin(3001, NORMAL, username="alice"))
    await answer(
        store, admin(3006, acl_body(resource='"Cluster:check"', actions='["All"]'), subject="User:alice")
    )
    alice = Credentials("alice", "alicesecret")

    async def asked(code, body=b"", **fields):
        said = await answer(store, signed(request(code, ext_fields=fields, body=body), alice))
        return said.code, said.remark

    super_user = b'{"password":"p","userType":"Super"}'
    update = "The super user can only be update by super user"
    assert await asked(3001, super_user, username="bob") == (
        1,
        "The super user can only be create by super user",
    )
    assert await asked(3002, super_user, username="alice") == (1, update)
    assert await asked(3002, b'{"password":"known"}', username="admin") == (16, update)
    assert await asked(3003, username="admin") == (16, update)
    assert (await asked(3001, NORMAL, username="bob"))[0] == 0
    assert (await asked(3003, username="bob"))[0] == 0
    assert set(store.tables.users) == {"admin", "alice", "inner"}


async def test_lists_are_merged_by_resource_and_deleted_by_resource(tmp_path):
    store = await opened(tmp_path)
    await answer(store, admin(3001, NORMAL, username="alice"))

    def entries():
        acl = store.tables.acls.get("alice")
        return [] if acl is None else [entry for policy in acl.policies for entry in policy.entries]

    for resource, decision in (("Topic:A", "Allow"), ("Topic:B*", "Allow"), ("Topic:A", "Deny")):
        body = acl_body(resource=f'"{resource}"', decision=f'"{decision}"')
        assert (await answer(store, admin(3007, body, **SUBJECT))).code == 0
    assert [(entry.pattern.text, entry.decision.wire_name) for entry in entries()] == [
        ("Topic:A", "Deny"),
        ("Topic:B*", "Allow"),
    ]
    assert (await answer(store, admin(3008, **SUBJECT, resource="Topic:C"))).code == 0
    found = await answer(store, admin(3010, resourceFilter="B"))
    assert bytes(found.body).count(b'"resource"') == 1
    assert not (await answer(store, admin(3010, subjectFilter="bob"))).body
    await answer(store, admin(3008, **SUBJECT, resource="Topic:A"))
    await answer(store, admin(3008, **SUBJECT, resource="Topic:B*"))
    assert store.tables.acls == {}
    await answer(store, admin(3007, acl_body(), **SUBJECT))
    await answer(store, admin(3003, username="alice"))
    assert store.tables.acls == {}


async def test_without_a_provider_of_lists_only_users_are_kept(tmp_path):
    store = await opened(tmp_path)
    said = await answer(store, admin(3010), has_acls=False)
    assert (said.code, said.remark) == (1, "The authorizationMetadataProvider is not configured.")
    assert (await answer(store, admin(3005), has_acls=False)).code == 0
