"""Frames that did harm once, each by name: what they are, and what must come of them."""

import pytest
from attrs import evolve

from tests.hostile.bench import Bench
from tests.hostile.frame import Frame, Lane, Outcome
from tests.hostile.generator import PINNED
from tests.hostile.requesting import Call
from tests.hostile.wire import BINARY, JSON, frame
from trioha.remoting.codes import RequestCode

pytestmark = pytest.mark.process

SEND = [
    ("a", "group"), ("b", "Topic"), ("c", "TBW102"), ("d", "4"), ("e", "0"), ("f", "0"), ("g", "0"), ("h",
    "0"),
]  # fmt: skip


def header(text, *, outcome=Outcome.CLOSED):
    return Frame(0, PINNED, Lane.MASTER, "pinned", text[:40], outcome, (frame(text.encode()),), opaque=1)


def send(*, serialization=JSON, refused=False, **fields):
    ext = [(name, fields.get(name, value)) for name, value in SEND]
    ext += [(name, value) for name, value in fields.items() if name not in dict(SEND)]
    data = Call(RequestCode.SEND_MESSAGE_V2, 1, serialization, ext, b"body").encode()
    return Frame(
        0,
        PINNED,
        Lane.MASTER,
        "pinned",
        str(fields)[:40],
        Outcome.ANSWERED,
        (data,),
        opaque=1,
        must_be_refused=refused,
    )


REQUESTS = {
    # Ended the node: `int` of a text that only looked like a number.
    "two-minus-signs-in-the-code": header('{"code":"--5","opaque":1,"flag":0,"version":0}'),
    "two-minus-signs-in-the-opaque": header('{"code":10,"opaque":"--5","flag":0,"version":0}'),
    "two-minus-signs-in-the-flag": header('{"code":10,"opaque":1,"flag":"--5","version":0}'),
    "arabic-digits-in-the-code": header('{"code":"\u0665","opaque":1,"flag":0,"version":0}'),
    "superscript-in-the-code": header('{"code":"\u00b2","opaque":1,"flag":0,"version":0}'),
    "a-code-of-5000-digits": header(f'{{"code":1{"0" * 5000},"opaque":1,"flag":0,"version":0}}'),
    "100000-arrays": header("[" * 100_000),
    # Stored although RocketMQ knows no such number.
    "arabic-digits-in-the-queue": send(e="\u0665", refused=True),
    # SYSTEM_ERROR with a traceback in the log.
    "two-minus-signs-in-the-delay": send(i="DELAY\x01--5\x02"),
    "a-delay-of-5001-digits": send(i="DELAY\x01" + "9" * 5001 + "\x02"),
    "superscript-in-the-delay": send(i="DELAY\x01\u00b2\x02"),
    "a-lone-surrogate-in-the-properties": send(i="TAGS\x01\ud800\x02"),
    "a-lone-surrogate-in-binary-properties": send(i="TAGS\x01\ud800\x02", serialization=BINARY),
}
ANSWERS = {
    # Ended the monitor.
    "two-minus-signs-in-the-code": '{"code":"--5","opaque":0,"flag":1,"version":0}',
    "two-minus-signs-in-the-opaque": '{"code":0,"opaque":"--5","flag":1,"version":0}',
    "arabic-digits-in-the-flag": '{"code":0,"opaque":0,"flag":"\u0665","version":0}',
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with Bench(tmp_path_factory.mktemp("regressions")) as bench:
        # Its nodes start here, for all tests of the module, and not within the first of them.
        bench.address(Lane.MASTER)
        yield bench


@pytest.mark.parametrize("lane", [Lane.MASTER, Lane.SLAVE])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_does_no_harm_any_more(bench, name, lane):
    assert bench.judge(evolve(REQUESTS[name], lane=lane)) == []


@pytest.mark.parametrize("lane", [Lane.CLIENT, Lane.FEED])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_does_no_harm_any_more(bench, name, lane):
    data = frame(ANSWERS[name].encode())
    pinned = Frame(
        0, PINNED, lane, "pinned", name, Outcome.ANY, (data,), code=RequestCode.GET_BROKER_HA_STATUS
    )
    assert bench.judge(pinned) == []
