"""`trioha doctor`: what is wrong with HA pairs, and what to do about it."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from socket import AF_INET, AF_INET6, SOCK_STREAM, socket
from typing import Annotated, Any, Final, Literal

import trio
from attrs import asdict
from cyclopts import Parameter, validators
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from trioha.cli.clients import name_servers_of
from trioha.cli.console import SEVERITY_STYLES, err, out, print_json
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.doctor.case import Case
from trioha.doctor.collector import Collector, Targets
from trioha.doctor.diagnosis import diagnose
from trioha.doctor.facts import Facts, Thresholds
from trioha.doctor.findings import CHECKS, Finding
from trioha.doctor.history import Course, History
from trioha.doctor.versions import BrokerVersion
from trioha.errors import ConfigError
from trioha.outside_text import escaped
from trioha.palette import GOOD
from trioha.remoting.address import parse_address
from trioha.severity import Severity
from trioha.unit_texts import counted

INTERVAL_S: Final = 10.0
PROGRESS_INTERVAL_S: Final = 5.0
"""Between two lines about a store that is read."""
CONF_ENDINGS: Final = (".conf", ".properties")


def doctor(
    *targets: Annotated[str, Parameter(name="ADDR|CONF|STORE", negative=())],
    namesrv: Annotated[tuple[str, ...], Parameter(name="--namesrv", negative=())] = (),
    watch: bool = False,
    interval: Annotated[float, Parameter(validator=validators.Number(gte=1, lte=3600))] = INTERVAL_S,
    json: bool = False,
    severity: Literal["critical", "warning", "notice"] = "notice",
    timeout: float = 3.0,
    source: str | None = None,
    rocketmq_version: str | None = None,
    clocks_apart: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 2.0,
    metadata_late: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    handover: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Check HA pairs of RocketMQ or trioha, and explain what is wrong and what to do.

    Exit code 0 if nothing was found, 1 for findings, 2 if the input cannot be used. Nothing is changed at the
    brokers. docs/doctor.md explains each finding.

    Parameters
    ----------
    targets
        Listen addresses of brokers, HOST:PORT, and paths of broker.conf files, of one or more pairs. A file
        and a running broker of the same cluster, name and id are examined together. A folder is a store:
        what trioha would not deliver of it is counted. Without them and --namesrv: the brokers of the name
        servers of NAMESRV_ADDR, or of 127.0.0.1:9876.
    namesrv
        Name servers: examines all brokers that they list, and whether the named ones are listed.
    watch
        Examine again and again, until Ctrl-C; the exit code is that of the last examination.
    interval
        Seconds between two examinations.
    json
        Print one JSON object for each examination.
    severity
        Leave out findings that are less severe.
    timeout
        Seconds for each connection and each request.
    source
        Address of this host from which the announced addresses are dialled.
    rocketmq_version
        Version that files without a running broker are for, as in 4.9.7, 5.5.0 or trioha.
    clocks_apart
        Seconds by which clocks may differ.
    metadata_late
        Seconds in which a slave should have copied a change; by default what its version needs.
    handover
        Also find what slaves do not have of their masters at this moment: before roles are exchanged.
    """
    if not 0 < timeout < math.inf:
        raise ConfigError(f"{timeout:g} is not more than 0", key="--timeout")
    if source is not None:
        _check_source(source)
    if rocketmq_version is not None:
        version = BrokerVersion.of(rocketmq_version)
        if not (version.is_rocketmq or version.is_trioha):
            raise ConfigError(
                f"{rocketmq_version!r} is not a version",
                key="--rocketmq-version",
                hint="as in 4.9.7 or 5.5.0",
            )
    least = Severity[severity.upper()]
    wanted = _targets(targets, name_servers_of(namesrv) if namesrv or not targets else ())
    client_security = security.read()

    def open_collector() -> Collector:
        return Collector(
            targets=wanted,
            timeout_s=timeout,
            security=client_security,
            source=source,
            assumed_version=rocketmq_version,
            thresholds=Thresholds(
                clocks_apart_ms=round(clocks_apart * 1000), metadata_late_s=metadata_late, handover=handover
            ),
            on_store_step=_store_progress(),
        )

    if watch:
        return trio.run(partial(_watch, open_collector, interval_s=interval, least=least, as_json=json))
    facts = trio.run(_examine, open_collector)
    findings = diagnose(facts, least=least)
    if json:
        print_json(report_as_json(facts, findings, at_ms=_now_ms()))
    else:
        out().print(report(facts, findings), soft_wrap=True)
    return 1 if findings else 0


def _targets(texts: Sequence[str], name_servers: Sequence[str]) -> Targets:
    """Addresses, files and stores: a folder is a store, a file or what looks like a path is a file.

    Raises ConfigError.
    """
    stores = [text for text in texts if Path(text).is_dir()]
    texts = [text for text in texts if text not in stores]
    paths = [text for text in texts if "/" in text or text.endswith(CONF_ENDINGS) or Path(text).is_file()]
    return Targets(
        addresses=tuple(parse_address(text) for text in texts if text not in paths),
        files=tuple(Path(text) for text in paths),
        stores=tuple(map(Path, stores)),
        name_servers=tuple(parse_address(text) for text in name_servers),
    )


def _store_progress() -> Callable[[int, int], None]:
    """Says on stderr every few seconds how far a store was read."""
    said_s = time.monotonic()

    def on_step(offset: int, end_offset: int) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= PROGRESS_INTERVAL_S:
            said_s = time.monotonic()
            err().print(f"counting timers and popped messages: {offset:,} of {end_offset:,} bytes")

    return on_step


def _check_source(text: str) -> None:
    """Raises ConfigError for what is not an IP address of this host."""
    try:
        family = AF_INET if ip_address(text).version == 4 else AF_INET6
        with socket(family, SOCK_STREAM) as trial:
            trial.bind((text, 0))
    except (ValueError, OSError):
        raise ConfigError(
            f"{text!r} is not an IP address of this host", key="--source", hint="`ip address` lists them"
        ) from None


async def _examine(open_collector: Callable[[], Collector]) -> Facts:
    return await open_collector().collect()


async def _watch(
    open_collector: Callable[[], Collector], *, interval_s: float, least: Severity, as_json: bool
) -> int:
    """Examine and show until SIGINT or SIGTERM; returns the exit code of the last examination."""
    code = 0
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:

        async def end_at_signal(scope: trio.CancelScope) -> None:
            async for _ in signals:
                scope.cancel()

        async def examine() -> None:
            nonlocal code
            collector, history = open_collector(), History()
            show_live = not as_json and out().is_terminal
            with (
                Live(console=out(), auto_refresh=False, screen=False) if show_live else nullcontext() as live
            ):
                while True:
                    started_s = trio.current_time()
                    facts = await collector.collect()
                    findings = diagnose(facts, least=least)
                    code = 1 if findings else 0
                    courses, at_ms = history.add(findings, at_ms=_now_ms()), _now_ms()
                    if as_json:
                        print_json(report_as_json(facts, findings, at_ms=at_ms))
                    elif live is not None:
                        live.update(report(facts, findings, courses=courses, at_ms=at_ms), refresh=True)
                    else:
                        out().print(report(facts, findings, courses=courses, at_ms=at_ms), soft_wrap=True)
                    await trio.sleep_until(started_s + interval_s)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_at_signal, nursery.cancel_scope)
            nursery.start_soon(examine)
    return code


def report(
    facts: Facts,
    findings: Sequence[Finding],
    *,
    courses: Sequence[Course] | None = None,
    at_ms: int | None = None,
) -> RenderableType:
    """The findings for people; with `courses` also since when they last, and which have ended."""
    case = Case.of(facts)
    head = _head(case, findings)
    if at_ms is not None:
        head.append(f"  {_clock(at_ms)}, Ctrl-C ends", style="dim")
    parts: list[RenderableType] = [head]
    for index, finding in enumerate(findings):
        since_ms = None if courses is None else courses[index].since_ms
        parts += [Text(""), *_paragraph(finding, since_ms=since_ms)]
    ended = [course for course in courses or () if course.ended_ms is not None]
    if ended:
        parts.append(Text(""))
    for course in ended:
        assert course.ended_ms is not None, "they have ended"
        text = f"ended {_clock(course.ended_ms)}  {course.finding.id}  {escaped(course.finding.subject)}"
        parts.append(Text(text, style=GOOD.terminal))
    return Group(*parts)


def report_as_json(facts: Facts, findings: Sequence[Finding], *, at_ms: int) -> dict[str, Any]:
    """The same for machines."""
    case = Case.of(facts)
    return {
        "atMillis": at_ms,
        "healthy": not findings,
        "nodes": [
            {
                "node": node.label,
                "cluster": node.cluster,
                "brokerName": node.name,
                "brokerId": node.broker_id,
                "role": node.role,
                "version": node.version.text or None,
                "file": None if node.conf is None else node.conf.path,
                "answers": node.status is not None,
            }
            for node in case.nodes
        ],
        "pairs": [{"master": pair.master.label, "slave": pair.slave.label} for pair in case.pairs],
        "stores": [store.path for store in case.stores],
        "nameServers": [server.address for server in case.name_servers],
        "findings": [asdict(finding) | {"severity": finding.severity.word} for finding in findings],
    }


def _head(case: Case, findings: Sequence[Finding]) -> Text:
    """One line: what was examined, and how many findings there are."""
    files = len(case.with_files)
    examined = ", ".join(
        counted(number, word)
        for number, word in (
            (sum(node.broker is not None for node in case.nodes), "broker"),
            (files, "file"),
            (len(case.stores), "store"),
            (len(case.pairs), "pair"),
            (len(case.name_servers), "name server"),
        )
        if number
    )
    if not findings:
        return Text.assemble(
            f"{examined or 'nothing'}: ", ("no findings", f"bold {GOOD.terminal}"), f" ({len(CHECKS)} checks)"
        )
    counts = [
        (
            f"{number} critical" if severity is Severity.CRITICAL else counted(number, severity.word),
            SEVERITY_STYLES[severity],
        )
        for severity in sorted(Severity, reverse=True)
        if (number := sum(finding.severity is severity for finding in findings))
    ]
    text = Text(f"{examined or 'nothing'}: ")
    for index, (words, style) in enumerate(counts):
        text.append(", " if index else "")
        text.append(words, style=style)
    return text


def _paragraph(finding: Finding, *, since_ms: int | None) -> list[RenderableType]:
    title = Text.assemble(
        (finding.severity.name, SEVERITY_STYLES[finding.severity]),
        "  ",
        (finding.id, "bold"),
        f"  {escaped(finding.subject)}",
    )
    if since_ms is not None:
        title.append(f"  since {_clock(since_ms)}", style="dim")
    return [
        title,
        Text(f"  {escaped(finding.title)}."),
        Text(f"  found: {escaped(finding.evidence)}"),
        Text(f"  do:    {escaped(finding.remedy)}"),
    ]


def _clock(at_ms: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
