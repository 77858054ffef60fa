"""A hostile node beside an honest one: against the live feed, and against the running application."""

from __future__ import annotations

import asyncio
import json
import random
from copy import deepcopy
from itertools import cycle

import pytest
import trio
from attrs import evolve
from rich.cells import cell_len

from tests.hostile.answering import CONFIG, HA_STATUS, RUNTIME_INFO
from tests.levels import by_level
from tests.monitor.test_answers import HOSTILE_TEXTS
from tests.monitor.test_feed_loopback import each_request, listening, status_of
from trioha.outside_text import clean
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import response_to
from trioha_monitor.app import MonitorApp
from trioha_monitor.faults import BOUNDARY
from trioha_monitor.live import FeedTimes, LiveSettings, live_views
from trioha_monitor.timeline import EVENTS_MAX
from trioha_monitor.view import Health

pytestmark = pytest.mark.full

TIMES = FeedTimes(
    interval_s=0.001, refresh_s=0.02, request_timeout_s=20.0, back_off_s_min=0.001, back_off_s_max=0.001
)
SLOWER = evolve(TIMES, interval_s=0.05, refresh_s=0.1)
CONNECTED = {Health.UP, Health.LATE}
"""On a busy machine an answer may take longer than a second; a node whose connection ended is DOWN."""

TEXTS = (*(text[:1_000_000] for text in HOSTILE_TEXTS), "[/]", "[bold", "", " ")
NUMBERS = (
    -1, 0, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400, 1.5, 1e308, float("nan"),
    float("inf"), -float("inf"),
)  # fmt: skip
OTHERS: tuple[object, ...] = (
    None, True, False, [], {}, [[[[[[]]]]]], {"a": {"b": {}}}, ["x"] * 50, {"\x1b[31m": 1, "[red]": 2},
)  # fmt: skip
Answer = dict[int, bytes]
"""Bodies by the code of the request."""


def answers(seed, *, count):
    """`count` answers, each with one wrong value or malformed."""
    lot = random.Random(seed)
    nested = (b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900, b"[" * 100_000)
    whole = (b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe\x00", b"{0:1,}", *nested, *crowds())
    for number in range(count):
        bodies = {
            RequestCode.GET_BROKER_HA_STATUS: deepcopy(HA_STATUS),
            RequestCode.GET_BROKER_RUNTIME_INFO: deepcopy(RUNTIME_INFO),
            RequestCode.GET_BROKER_CONFIG: deepcopy(CONFIG),
        }
        if number % 3 == 0:
            # A RocketMQ broker: its runtime table and its configuration are read.
            del bodies[RequestCode.GET_BROKER_HA_STATUS]["trioha"]
        values = lot.choice((TEXTS, NUMBERS, OTHERS))
        replace_somewhere(bodies[lot.choice(list(bodies))], lot.choice(values), lot)
        encoded = {code: encoded_body(code, body) for code, body in bodies.items()}
        if number % 5 == 0:
            encoded[RequestCode.GET_BROKER_HA_STATUS] = lot.choice(whole)
        yield encoded


def crowds():
    """Ten thousand connections, names, probes, warnings."""
    one = HA_STATUS["haConnectionInfo"][0]
    crowd = [one | {"addr": f"10.{n // 65536}.{n // 256 % 256}.{n % 256}:1"} for n in range(10_000)]
    yield json.dumps(HA_STATUS | {"haConnectionInfo": crowd}).encode()
    probes = [one | {"addr": f"10.0.0.1:{n}", "state": "HANDSHAKE"} for n in range(10_000)]
    yield json.dumps(HA_STATUS | {"haConnectionInfo": [*probes, one]}).encode()
    names = {f"NAME_{n}\x1b[31m": n for n in range(10_000)}
    extras = {
        "putStatuses": names,
        "endedConnections": names,
        "probes": {name: {"EOF": 1} for name in names},
        "warnings": list(names),
    }
    yield json.dumps(HA_STATUS | {"trioha": HA_STATUS["trioha"] | extras}).encode()
    yield b'{"master":true,"haConnectionInfo":[' + b"{}," * 1_000_000 + b"{}]}"
    yield b'{"master":true,"x":{' + b"0:0," * 500_000 + b"0:0}}"


def replace_somewhere(place, value, lot):
    """Set `value` somewhere in `place`, or use it as a key there."""
    while keys := list(place) if isinstance(place, dict) else list(range(len(place))):
        key = lot.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and lot.random() < 0.8:
            place = inner
            continue
        if isinstance(place, dict) and isinstance(value, str) and lot.random() < 0.2:
            place[value] = place.pop(key)
        else:
            place[key] = value
        return


def encoded_body(code, body):
    if code == RequestCode.GET_BROKER_CONFIG:
        return "\n".join(f"{key}={value}" for key, value in body.items()).encode("utf-8", "replace")
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def speaking(text):
    """A valid answer in which every text is `text`, or a prefix of it."""
    text = text[:5_000]

    def said(value):
        if isinstance(value, str):
            return text
        if isinstance(value, list):
            return [said(one) for one in value]
        return {key: said(one) for key, one in value.items()} if isinstance(value, dict) else value

    status = said(HA_STATUS)
    status["haConnectionInfo"] = status["haConnectionInfo"][:1]
    status["trioha"] |= {
        "role": "SYNC_MASTER",
        "putStatuses": {"PUT_OK": 1, text: 2},
        "endedConnections": {text: 3},
        "probes": {text: {text: 4}},
    }
    return {
        RequestCode.GET_BROKER_HA_STATUS: encoded_body(RequestCode.GET_BROKER_HA_STATUS, status),
        RequestCode.GET_BROKER_RUNTIME_INFO: encoded_body(RequestCode.GET_BROKER_RUNTIME_INFO, RUNTIME_INFO),
    }


def answer_to(command, answer):
    """The frame of an answer."""
    body = answer.get(command.code)
    if body is None:
        return encode(response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    return encode(response_to(command, ResponseCode.SUCCESS, body=body))


class HostileNode:
    """Answers each request for its status with the next body, in a cycle."""

    def __init__(self, told):
        self.told = 0
        self.all_told = trio.Event()
        """Set when it begins anew."""
        self.say(told)

    def say(self, told):
        """Answer so from now on."""
        self._told, self._count = cycle(told), len(told)

    async def serve(self, stream):
        """One connection of the monitor's."""
        current = {}

        def answer(command):
            nonlocal current
            if command.code == RequestCode.GET_BROKER_HA_STATUS:
                self.told += 1
                if self.told > self._count:
                    self.all_told.set()
                current = next(self._told)
            return answer_to(command, current)

        await each_request(stream, answer)


async def honest(stream):
    await each_request(stream, status_of)


@pytest.mark.sized
@pytest.mark.timeout(1200)
async def test_a_hostile_answer_ends_its_own_connection_only():
    told = list(answers(7, count=by_level(60, 250, 3000)))
    node = HostileNode(told)
    bugs, healths, faults = BOUNDARY.bugs, set(), set()
    views = []

    def show(view):
        good, bad = view.nodes
        healths.add(good.health)
        faults.update(bad.faults)
        views[:] = [view]
        assert_bounded_and_clean(view)

    async with listening(honest) as good, listening(node.serve) as bad, trio.open_nursery() as nursery:
        feed = live_views([f"127.0.0.1:{good}", f"127.0.0.1:{bad}"], settings=LiveSettings(times=TIMES))
        nursery.start_soon(feed, show)
        await node.all_told.wait()
        nursery.cancel_scope.cancel()
    assert healths <= CONNECTED | {Health.CONNECTING}
    assert views[0].nodes[0].health in CONNECTED
    assert len(faults) > 10
    assert BOUNDARY.bugs == bugs


def assert_bounded_and_clean(view):
    assert len(view.events) <= EVENTS_MAX
    assert len(view.replicas) <= 2 * 600
    for node in view.nodes:
        texts = [node.label, node.role, node.cluster, node.version, node.ha_address, node.reason]
        texts += [put.status for put in node.log.puts]
        texts += [*node.ended_connections, *node.warnings, *node.faults]
        texts += [f"{probe.host} {probe.reason}" for probe in node.probes]
        assert all(text == clean(text, length_max=400) for text in texts)
        assert max(len(node.log.puts), len(node.ended_connections), len(node.warnings)) <= 60
        assert len(node.faults) <= 33


def test_no_hostile_text_ends_the_application_or_leaves_its_cell():
    node = HostileNode([speaking(TEXTS[0])])
    bugs = BOUNDARY.bugs
    app = MonitorApp(feed_with(node, honest_ports := []))

    async def run():
        async with app.run_test(size=(120, 40)) as pilot:
            for text in TEXTS:
                node.say([speaking(text)])
                # A view with the answers to the next two requests follows.
                until, before = node.told + 2, app.monitor_screen.view
                while node.told < until or (view := app.monitor_screen.view) is None or view is before:
                    await pilot.pause(0.01)
                for key in "1234":
                    await pilot.press(key)
                    app.monitor_screen.redraw()
                    await pilot.pause()
                    assert_drawn_in_cells(pilot, size=(120, 40))
                honest_node = view.node(f"127.0.0.1:{honest_ports[0]}")
                assert honest_node.health in CONNECTED
                assert honest_node.log.max_offset == 5000
            assert app.is_running

    asyncio.run(run())
    assert (app.failure, app.crash, app.return_code or 0) == (None, None, 0)
    assert BOUNDARY.bugs == bugs


def feed_with(node, honest_ports):
    """The live feed of `node`, which is the first and so the chosen one, and of an honest node."""

    async def feed(show):
        async with listening(honest) as good, listening(node.serve) as bad:
            honest_ports.append(good)
            addresses = [f"127.0.0.1:{bad}", f"127.0.0.1:{good}"]
            await live_views(addresses, settings=LiveSettings(times=SLOWER))(show)

    return feed


def assert_drawn_in_cells(pilot, *, size):
    """Every line of the screen is as wide as the screen, and nothing in it is more than a character."""
    width, height = size
    strips = pilot.app.screen._compositor.render_strips()
    assert len(strips) == height
    for strip in strips:
        text = strip.text
        assert text.isprintable(), ascii(text)
        assert strip.cell_length == cell_len(text) == sum(map(cell_len, text)) == width
