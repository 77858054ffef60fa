"""Who signed a request, and whether that user may do it: remarks, switches, white lists, hostile requests."""

import pytest
from structlog.testing import capture_logs

from trioha.auth.bodies import acl_of_request
from trioha.auth.model import User, UserStatus, UserType
from trioha.auth.tables import AuthTables
from trioha.broker.touched import Around
from trioha.broker.user_access import AccessSettings, UserAccess
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, request, response_to
from trioha.remoting.serving import Peer
from trioha.remoting.signature import ACCESS_KEY, SIGNATURE, Credentials, signed

USERS = (
    User("admin", "adminsecret", UserType.SUPER),
    User("alice", "alicesecret"),
    User("gone", "gonesecret", UserType.SUPER, UserStatus.DISABLE),
)
ACL = acl_of_request(
    "User:alice",
    b'{"policies":[{"entries":['
    b'{"resource":"Topic:Orders","actions":["Pub","Sub"],"decision":"Allow"},'
    b'{"resource":"Topic:Local","actions":["All"],"decision":"Allow","sourceIps":["192.0.2.0/24"]},'
    b'{"resource":"Topic:Secret*","actions":["All"],"decision":"Deny"},'
    b'{"resource":"Topic:S*","actions":["All"],"decision":"Allow"},'
    b'{"resource":"Group:workers","actions":["Sub"],"decision":"Allow"}]}]}',
)
TABLES = AuthTables({user.name: user for user in USERS}, {"alice": ACL})
TOPICS = {100: "Orders", 200: "Other"}


def check(asked, host="192.0.2.7", **settings):
    """The remark of a refusal; None for a request that is served."""
    chosen = AccessSettings(**{"authentication": True, "authorization": True, **settings})
    access = UserAccess(lambda: TABLES, chosen, Around("check", TOPICS.get))
    try:
        access.guard(lambda asked, _: response_to(asked, ResponseCode.SUCCESS))(
            asked, Peer(Address(host, 5555), 1)
        )
    except BadRequestError as refused:
        said = refused
    else:
        return None
    assert (said.code, access.refused) == (ResponseCode.NO_PERMISSION, 1)
    return said.reason


def by(name, asked, secret=None):
    return signed(asked, Credentials(name, secret or f"{name}secret"))


def send(topic):
    return request(310, ext_fields={"a": "P", "b": topic})


def fields(code, **given):
    return request(code, ext_fields=given)


NO = "User:alice has no permission to access {} from 192.0.2.7, no matched policies."


@pytest.mark.parametrize(
    ("asked", "remark"),
    [
        (send("Orders"), "username cannot be null."),
        (request(RequestCode.HEART_BEAT), "username cannot be null."),
        (by("mallory", send("Orders")), "User:mallory is not found."),
        (by("gone", send("Orders")), "User:gone is disabled."),
        (by("alice", send("Orders"), "wrong"), "check signature failed."),
        (by("alice", send("Orders")), None),
        (by("alice", send("Local")), None),
        (by("alice", send("Stocks")), None),
        (by("alice", send("Other")), NO.format("Topic:Other")),
        (
            by("alice", send("Secret1")),
            "User:alice has no permission to access Topic:Secret1 from 192.0.2.7, the decision is deny.",
        ),
        (by("alice", send("%RETRY%workers")), None),
        (by("alice", send("%RETRY%others")), NO.format("Group:others")),
        (by("alice", fields(11, topic="Orders", consumerGroup="workers")), None),
        (by("alice", fields(11, topic="Orders", consumerGroup="others")), NO.format("Group:others")),
        (by("alice", fields(36, group="workers", offset="100")), None),
        (by("alice", fields(36, group="workers", offset="200")), NO.format("Topic:Other")),
        (by("alice", fields(37, topic="Orders", commitLogOffset="200")), NO.format("Topic:Other")),
        (by("alice", fields(30, topic="Orders", queueId="0")), NO.format("Topic:Orders")),
        (by("alice", request(25)), NO.format("Cluster:check")),
        (by("alice", request(3005)), NO.format("Cluster:check")),
        (by("alice", request(28)), None),
        (by("alice", request(RequestCode.GET_ALL_CONSUMER_OFFSET)), None),
        # A code that nobody serves: its handler says so.
        (by("alice", request(99_999)), None),
        (by("admin", send("Secret1")), None),
        (by("admin", request(3005)), None),
        # Controllers do not sign, and their notice is not believed.
        (request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED), None),
    ],
)
def test_requests_are_served_or_refused_with_the_remark_of_a_real_broker(asked, remark):
    assert check(asked) == remark


def test_an_entry_holds_for_its_addresses():
    asked = by("alice", send("Local"))
    assert check(asked, "198.51.100.7") == (
        "User:alice has no permission to access Topic:Local from 198.51.100.7, no matched policies."
    )
    assert check(asked, "::ffff:192.0.2.7") is None


def test_each_check_has_its_own_switch():
    only_authenticated = {"authorization": False}
    assert check(by("alice", send("Other")), **only_authenticated) is None
    assert check(send("Other"), **only_authenticated) == "username cannot be null."
    only_authorized = {"authentication": False}
    named = request(310, ext_fields={"b": "Orders", ACCESS_KEY: "alice"})
    assert check(named, **only_authorized) is None
    assert check(send("Orders"), **only_authorized) == (
        "Authorization failed. Please verify your access rights and try again."
    )
    assert check(request(310, ext_fields={"b": "T", ACCESS_KEY: "mallory"}), **only_authorized) == (
        "User:mallory not found."
    )
    assert check(request(28), **only_authorized) is None


def test_codes_of_white_lists_are_not_checked():
    assert check(send("Orders"), not_authenticated=frozenset((310,)), authorization=False) is None
    assert check(send("Orders"), not_authenticated=frozenset((310,))) is not None
    assert check(by("alice", send("Other")), not_authorized=frozenset((310,))) is None
    assert check(send("Other"), not_authorized=frozenset((310,))) == "username cannot be null."


@pytest.mark.parametrize(
    "given",
    [
        {ACCESS_KEY: ""},
        {ACCESS_KEY: "x" * 50_000},
        {ACCESS_KEY: "\ud800"},
        {ACCESS_KEY: "alice"},
        {ACCESS_KEY: "alice", SIGNATURE: ""},
        {ACCESS_KEY: "alice", SIGNATURE: "\u0661" * 1000},
        {SIGNATURE: "x"},
    ],
)
def test_hostile_fields_are_refused_in_one_short_line(given):
    remark = check(request(310, ext_fields={"b": "Orders", **given}))
    assert remark is not None
    assert len(remark) < 300


def test_a_long_resource_is_refused_in_one_short_line():
    remark = check(by("alice", send("T" * 50_000)))
    assert remark is not None
    assert len(remark) < 500


def test_refusals_are_logged_without_a_secret():
    with capture_logs() as lines:
        check(by("alice", send("Orders"), "wrong"))
    assert len(lines) == 1
    assert "alicesecret" not in str(lines)
