"""`trioha status`: brokers and their replication, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final, get_origin

import attrs
import trio
from cattrs import Converter
from cattrs.gen import make_dict_unstructure_fn, override
from cyclopts import Parameter

from trioha.broker_status import BrokerStatus
from trioha.cli.clients import name_servers_of
from trioha.cli.console import err, print_json
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.cli.status_lines import print_rows
from trioha.cli.status_rows import WORDS, Earlier, StatusRow, Summary, rows_of, second_look_s, summary_of
from trioha.cli.status_tables import print_overview, print_statuses
from trioha.controller.group_status import fetch_control, is_controlled
from trioha.controller.overview import Connect, Overview, fetch_overview
from trioha.errors import ConfigError, RemoteProtocolError, TriohaError
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import ClientSecurity, open_client
from trioha.remoting.fastjson import camel_case
from trioha.remoting.name_server import fetch_broker_groups
from trioha.remoting.status_reader import StatusReader
from trioha.severity import Severity


@attrs.frozen
class Asked:
    """Whom to ask, and how."""

    addresses: tuple[Address, ...]
    name_servers: tuple[str, ...]
    controller: str | None
    groups: tuple[str, ...]
    """Of the controllers, beside those of the brokers that answer."""
    timeout_s: float
    security: ClientSecurity


@attrs.frozen
class Answers:
    """What brokers and controllers say."""

    brokers: list[BrokerStatus]
    errors: list[TriohaError]
    earlier: Earlier | None = None
    """The brokers' first answers, if they were asked twice."""
    overview: Overview | None = None


def status(
    *addresses: Annotated[str, Parameter(name="HOST:PORT", negative=())],
    namesrv: tuple[str, ...] = (),
    name_server: Annotated[tuple[str, ...], Parameter(show=False)] = (),
    controller: str | None = None,
    group: tuple[str, ...] = (),
    wide: bool = False,
    reachable: bool = False,
    timeout: float = 3.0,
    json: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Show in a line each how brokers and replicas are, trioha's or RocketMQ's.

    The first line is the state of all. Exit code 1 if that is CRITICAL: a replica is refused, diverged,
    stalled or not connected, a disk is full, messages are refused, or a broker or controller does not answer.
    Where a replica lacks bytes for longer than puts wait for it, the brokers are asked again after that time,
    to see whether it moves.

    Parameters
    ----------
    addresses
        Listen addresses of brokers. Without them and --namesrv or --controller: the brokers of the name
        servers of NAMESRV_ADDR, or of 127.0.0.1:9876.
    namesrv
        Name servers: shows all brokers that they list.
    name_server
        The same.
    controller
        One of RocketMQ's controllers: shows who leads, and the groups of the brokers that answer.
    group
        brokerName of a further group that the controllers are asked for; may be repeated.
    wide
        Show all figures, in tables.
    reachable
        Exit code 1 only if a broker or controller does not answer.
    timeout
        Seconds for each of them to answer.
    json
        Print one JSON object.
    """
    if controller is None and group:
        raise ConfigError("is missing", key="--controller", hint="give HOST:PORT of a controller")
    if not 0 < timeout < math.inf:
        raise ConfigError(f"{timeout:g} is not more than 0", key="--timeout")
    if controller is not None:
        parse_address(controller)
    named = (*namesrv, *name_server)
    asked = Asked(
        tuple(parse_address(address) for address in addresses),
        name_servers_of(named) if named or not (addresses or controller) else (),
        controller,
        group,
        timeout,
        security.read(),
    )
    answers = trio.run(_ask, asked)
    rows = rows_of(answers.brokers, earlier=answers.earlier)
    summary = summary_of(
        rows,
        unreachable=len(answers.errors),
        further=[] if answers.overview is None else _overview_problems(answers.overview),
    )
    if json:
        print_json(_as_json(answers, rows, summary))
    else:
        _print(answers, rows, summary, wide=wide)
    for error in answers.errors:
        err().print(f"trioha: {error}", soft_wrap=True)
    if not (answers.brokers or addresses or named or controller):
        err().print("trioha: no broker was named; write trioha status HOST:PORT ..., or --namesrv HOST:PORT")
    return 1 if answers.errors or (summary.severity is Severity.CRITICAL and not reachable) else 0


def _print(answers: Answers, rows: Sequence[StatusRow], summary: Summary, *, wide: bool) -> None:
    print_rows(summary, () if wide else rows)
    if answers.overview is not None:
        print_overview(answers.overview, with_epochs=wide)
    if wide and answers.brokers:
        print_statuses(answers.brokers)


def _as_json(answers: Answers, rows: Sequence[StatusRow], summary: Summary) -> dict[str, Any]:
    shown = {
        "state": {"severity": WORDS[summary.severity], "text": summary.text},
        "verdicts": [
            {
                "address": row.address,
                "master": row.master or None,
                "state": row.state,
                "severity": WORDS[row.severity],
                "verdict": None if row.verdict is None else row.verdict.name,
                "lagBytes": row.lag_bytes,
                "lagMs": row.lag_ms,
                "problems": list(row.problems),
            }
            for row in rows
        ],
        "brokers": _converter.unstructure(answers.brokers),
        "errors": [str(error) for error in answers.errors],
    }
    if answers.overview is not None:
        shown["controllers"] = _converter.unstructure(answers.overview)
    return shown


def _overview_problems(overview: Overview) -> list[tuple[Severity, str]]:
    """What is wrong with controllers and their groups."""
    problems = [] if overview.leader else [(Severity.CRITICAL, "no controller leads")]
    problems += [
        (Severity.WARNING, f"controller {view.address} does not answer")
        for view in overview.controllers
        if view.error is not None
    ]
    for each in overview.groups:
        if each.master_id is None:
            problems.append((Severity.CRITICAL, f"{each.broker_name} has no master"))
        dead = sum(not member.is_alive for member in each.members)
        if dead:
            problems.append(
                (Severity.WARNING, f"{each.broker_name}: {dead} of {len(each.members)} not alive")
            )
    problems += [
        (Severity.WARNING, f"{name} is not known to the controllers") for name in overview.unknown_groups
    ]
    return problems


async def _ask(asked: Asked) -> Answers:
    """Ask all of them; the brokers twice where one answer does not show whether a replica moves."""
    connect = partial(open_client, connect_timeout_s=asked.timeout_s, security=asked.security)
    listed, errors = await _ask_name_servers(asked, connect)
    found = [parse_address(address) for addresses in listed.values() for address in addresses]
    addresses = tuple(dict.fromkeys((*asked.addresses, *found)))
    asked_s = trio.current_time()
    brokers, failures = await _ask_brokers(addresses, asked.timeout_s, connect)
    earlier: Earlier | None = None
    if (wait_s := second_look_s(brokers)) is not None:
        await trio.sleep_until(trio.current_time() + wait_s)
        first, again_s = brokers, trio.current_time()
        brokers, failures = await _ask_brokers(addresses, asked.timeout_s, connect)
        earlier = Earlier(first, again_s - asked_s)
    overview: Overview | None = None
    errors += failures
    if asked.controller is not None:
        names = [*asked.groups, *(each.broker_name for each in brokers if each.broker_name), *listed]
        try:
            overview = await fetch_overview(
                asked.controller, names, connect=connect, timeout_s=asked.timeout_s
            )
        except TriohaError as error:
            errors.append(_of(asked.controller, error))
    return Answers(brokers, errors, earlier, overview)


async def _ask_name_servers(asked: Asked, connect: Connect) -> tuple[dict[str, list[str]], list[TriohaError]]:
    """Addresses of brokers by their name, as the first name server that answers lists them; and errors."""
    errors: list[TriohaError] = []
    for address in asked.name_servers:
        try:
            async with connect(address) as client:
                groups = await fetch_broker_groups(client, timeout_s=asked.timeout_s)
        except TriohaError as error:
            errors.append(_of(address, error))
        else:
            listed: dict[str, list[str]] = {}
            for each in groups:
                listed.setdefault(each.broker_name, []).extend(each.addresses.values())
            return listed, errors
    return {}, errors


async def _ask_brokers(
    addresses: Sequence[Address], timeout_s: float, connect: Connect
) -> tuple[list[BrokerStatus], list[TriohaError]]:
    """Their answers in the order of `addresses`, and the errors of the others; all are asked at once."""
    answers: dict[Address, BrokerStatus] = {}
    errors: dict[Address, TriohaError] = {}

    async def ask(address: Address) -> None:
        try:
            async with connect(str(address)) as client:
                reader = StatusReader(client)
                found = await reader.fetch(timeout_s=timeout_s)
                if (config := reader.config) is not None and is_controlled(found, config):
                    control = await fetch_control(client, found, config, connect=connect, timeout_s=timeout_s)
                    found = attrs.evolve(found, control=control)
                answers[address] = found
        except TriohaError as error:
            errors[address] = _of(address, error)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ask, address)
    return (
        [answers[address] for address in addresses if address in answers],
        [errors[address] for address in addresses if address in errors],
    )


def _of(address: object, error: TriohaError) -> TriohaError:
    """The error with the address of the peer, which that of an answer does not have."""
    return RemoteProtocolError(f"{address}: {error}") if isinstance(error, RemoteProtocolError) else error


def _fields_hook(kind: type) -> Callable[[Any], dict[str, Any]]:
    """Writes each field of an attrs class, in camel case as RocketMQ's own keys are."""
    names: dict[str, Any] = {
        name: override(rename=_KEYS.get(name, camel_case(name)))
        for name in attrs.fields_dict(get_origin(kind) or kind)
    }
    return make_dict_unstructure_fn(kind, _converter, **names)


_KEYS: Final = {"last_received_ms": "heardMs"}
"""Keys that are not their field's name in camel case."""
_converter = Converter()
_converter.register_unstructure_hook_factory(attrs.has, _fields_hook)
