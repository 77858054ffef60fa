"""Settings that are refused, ignored, or not in effect, by the version of the broker.

See docs/protocol/ha.md#settings, docs/protocol/ha.md#defects.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Final

from attrs import fields, resolve_types

from trioha.config.broker import BrokerConfig, BrokerRole, find_setting
from trioha.config.keys.ha import HA_TRANSFER_BATCH_BYTES_MAX
from trioha.config.keys.store import FlushDiskType
from trioha.config.loading import InvalidConfig
from trioha.config.rocketmq_keys import RETIRED_KEYS, ROCKETMQ_KEYS, similar_key
from trioha.config.values import InvalidValue
from trioha.doctor.case import Case, Node, is_known_key
from trioha.doctor.facts import ConfFacts, ConfValue
from trioha.doctor.findings import Observation, check
from trioha.errors import ConfigError
from trioha.numbers import I64, parse_int
from trioha.severity import Severity

HEARTBEAT_MS: Final = 5_000
HOUSEKEEPING_MS: Final = 20_000
ADDRESSES: Final = frozenset(("namesrv_addr", "ha_master_address", "controller_addr"))
"""Settings that no broker can work with if they cannot be read."""


@check(
    "setting-invalid",
    Severity.WARNING,
    mend="Write a value that the key can have.",
)
def setting_invalid(case: Case) -> Iterator[Observation]:
    """A value in a broker.conf cannot be used.

    RocketMQ keeps the default without a word where a number or name cannot be parsed (4.9 also where a
    blank follows a number), and uses numbers that make no sense as they are. trioha refuses the whole file,
    also for settings that contradict each other: then it is critical. Of a file that may be either's it is a
    warning, and critical for an address with which neither can work. Files that it names (certificates, rules
    of access control) are opened as the node would.
    """
    for node, conf in case.with_files:
        if node.is_trioha or not node.version.is_rocketmq:
            yield from _refused(node, conf)
        else:
            yield from _unread(conf)
        for value in conf.values.values():
            if (
                value.has_blanks
                and _may_be_4(node)
                and _is_number(value.value)
                and _problem_of(value) is None
            ):
                yield Observation(
                    subject=conf.path,
                    evidence=f"line {value.line}: {value.key}={value.value} with a blank after it, for "
                    "which 4.9 "
                    "keeps the default",
                    remedy=f"{value.key}={value.value} without the blank",
                )


def _may_be_4(node: Node) -> bool:
    return not (node.is_trioha or node.version.is_5)


def _refused(node: Node, conf: ConfFacts) -> Iterator[Observation]:
    """What `trioha node` refuses in a file that is trioha's, or may be."""
    for problem in conf.file_problems:
        yield Observation(
            subject=conf.path,
            evidence=f"{problem} (on this host): `trioha node` does not start",
            remedy=problem.hint or "correct that file, or the setting that names it",
            severity=Severity.CRITICAL if node.is_trioha else Severity.WARNING,
        )
    for problem in _problems(conf):
        severity = Severity.CRITICAL
        if not node.is_trioha:
            if problem.key is not None and not is_known_key(problem.key):
                # setting-unknown reports it.
                continue
            severity = Severity.CRITICAL if _is_address(problem.key) else Severity.WARNING
        yield Observation(
            subject=conf.path,
            evidence=str(problem) + ("" if node.is_trioha else "; `trioha node` refuses the file"),
            remedy=problem.hint or "correct the line",
            severity=severity,
        )


def _unread(conf: ConfFacts) -> Iterator[Observation]:
    """Values that a broker of RocketMQ cannot use."""
    for value in conf.values.values():
        if (found := _problem_of(value)) is not None:
            reason, hint = found
            yield Observation(
                subject=conf.path,
                evidence=f"line {value.line}: {value.key}={value.value}: {reason}; RocketMQ says nothing",
                remedy=f"{value.key}: {hint or 'give another value'}",
                severity=Severity.CRITICAL if _is_address(value.key) else None,
            )


@check(
    "setting-out-of-range",
    Severity.WARNING,
    mend="Set the value as the finding says, and restart the broker.",
)
def setting_out_of_range(case: Case) -> Iterator[Observation]:
    """A value in effect is outside of its range.

    RocketMQ checks no ranges: a port of 70000, a timeout of 0, a frame that no slave can receive
    (haTransferBatchSize of more than 4 MiB - 12: slaves receive into 4 MiB and never complete it) are used.
    """
    for node in case.running:
        for key, value in sorted(node.running_config.items()):
            found = find_setting(key)
            if found is None or found[1].key != key or not _is_number(value):
                continue
            try:
                found[1].parse(value)
            except InvalidValue as refused:
                why = ""
                if key == "haTransferBatchSize" and int(value) > HA_TRANSFER_BATCH_BYTES_MAX:
                    why = "; slaves never complete such a frame"
                yield Observation(
                    subject=node.label,
                    evidence=f"{key}={value}: {refused.reason}{why}",
                    remedy=f"{key}: {refused.hint or 'give another value'}",
                )


@check(
    "setting-unknown",
    Severity.WARNING,
    mend="Correct the spelling, or remove the line.",
)
def setting_unknown(case: Case) -> Iterator[Observation]:
    """No version of RocketMQ or trioha has a key that is in a broker.conf.

    RocketMQ ignores it without a word; trioha refuses the file.
    """
    for node, conf in case.with_files:
        if node.is_trioha:
            # setting-invalid reports what trioha says.
            continue
        for value in conf.values.values():
            if is_known_key(value.key):
                continue
            similar = similar_key(value.key, ROCKETMQ_KEYS, given=conf.values.keys())
            instead = RETIRED_KEYS.get(value.key)
            yield Observation(
                subject=conf.path,
                evidence=f"line {value.line}: {value.key}={value.value}",
                remedy=f"{instead} has its effect"
                if instead
                else f"did you mean {similar}?"
                if similar
                else f"remove {value.key}",
            )


@check(
    "setting-ignored",
    Severity.WARNING,
    mend="Remove the line, or run a version that has the key.",
)
def setting_ignored(case: Case) -> Iterator[Observation]:
    """A key in a broker.conf is ignored by the version of this broker.

    RocketMQ ignores keys that it does not know without a word. The version is that of the running broker
    with the file's cluster, name and id, or that of `--rocketmq-version`. 4.9 also ignores haListenPort:
    its HA port is always listenPort + 1.
    """
    for node, conf in case.with_files:
        for key, reason in node.version.unused_keys(conf.values).items():
            value = conf.values[key]
            yield Observation(
                subject=conf.path,
                evidence=f"line {value.line}: {key}={value.value} is not used by {node.version.shown}: "
                f"{reason}",
                remedy=f"remove {key}" + (f", write {reason.split()[-1]}" if "calls it" in reason else ""),
            )
        port = conf.values.get("haListenPort")
        if (
            node.version.is_4
            and port is not None
            and _is_number(port.value)
            and int(port.value) != node.ha_port
        ):
            yield Observation(
                subject=conf.path,
                evidence=f"line {port.line}: haListenPort={port.value}, but {node.version.shown} always "
                "listens "
                f"on listenPort + 1, which is {node.ha_port}",
                remedy=f"remove haListenPort; slaves dial {node.ha_port}",
            )


@check(
    "setting-not-in-effect",
    Severity.WARNING,
    mend="Restart the broker, or write what is in effect into its file.",
)
def setting_not_in_effect(case: Case) -> Iterator[Observation]:
    """A running broker has another value than its file.

    The file was edited after the start, the value was changed at run time, or the broker replaced a value
    that it could not use: the next start behaves differently.
    """
    for node, conf in case.with_files:
        for value in conf.values.values():
            running = node.running_config.get(value.key)
            if node.uses_controller and value.key in {"brokerId", "brokerRole"}:
                # The controllers decide.
                continue
            if running is None or _problem_of(value) is not None or _is_same(value.key, value.value, running):
                continue
            if value.key in {"haListenPort", "listenPort"} and (
                node.version.is_4 or value.value.strip() == "0"
            ):
                # setting-ignored reports it; port 0 is any port.
                continue
            yield Observation(
                subject=node.label,
                evidence=f"{conf.path}:{value.line}: {value.key} is {value.value}, in effect is {running}",
                remedy=f"restart {node.label}, or write {value.key}={running} into {conf.path}",
            )


@check(
    "ha-master-address-ignored",
    Severity.CRITICAL,
    mend="Remove `haMasterAddress`, and set `namesrvAddr`: the slave learns its master's address there.",
)
def ha_master_address_ignored(case: Case) -> Iterator[Observation]:
    """A slave of RocketMQ 5 with haMasterAddress never connects.

    5.x applies the key before the HA client exists, and then ignores the address that it learns from name
    servers because the key is set. Its log has `connect to master null failed` every 5 s. 4.9 and trioha
    use the key.
    """
    for node in case.nodes:
        address = node.setting("haMasterAddress")
        if address and node.is_slave and node.version.is_5:
            yield Observation(
                subject=node.label,
                evidence=f"{node.place('haMasterAddress')} is {address}; {node.version.shown} never dials it",
                remedy="remove haMasterAddress, set namesrvAddr, and restart the slave",
            )


@check(
    "slave-without-name-server",
    Severity.WARNING,
    mend="Set `namesrvAddr` at the slave.",
)
def slave_without_name_server(case: Case) -> Iterator[Observation]:
    """A slave of RocketMQ has no name server.

    It learns its master's address for topics, groups and offsets from the name server only: without one
    these are never copied, no consumer finds the slave, and 5.x does not copy the log either.
    """
    for node in case.slaves:
        if node.is_trioha or not (node.running_config or node.broker is None):
            continue
        if not (node.setting("namesrvAddr") or node.setting("rmqAddressServerDomain")):
            yield Observation(
                subject=node.label,
                evidence="namesrvAddr is empty",
                remedy="namesrvAddr=HOST:9876 in its broker.conf (or NAMESRV_ADDR), then restart it",
            )


@check(
    "heartbeat-above-housekeeping",
    Severity.CRITICAL,
    mend="Set `haHousekeepingInterval` to at least three times `haSendHeartbeatInterval`, on both sides.",
)
def heartbeat_above_housekeeping(case: Case) -> Iterator[Observation]:
    """A broker sends heartbeats less often than its peer waits for them.

    An HA connection without traffic for haHousekeepingInterval of one side is closed. If the other side
    sends heartbeats at that interval or later, idle connections are closed and made again for ever; a 4.9
    slave needs 5 s before each first report.
    """
    for pair in case.pairs:
        for sender, receiver in ((pair.master, pair.slave), (pair.slave, pair.master)):
            heartbeat_ms = _interval(sender, "haSendHeartbeatInterval", "heartbeat_ms", HEARTBEAT_MS)
            housekeeping_ms = _interval(
                receiver, "haHousekeepingInterval", "housekeeping_ms", HOUSEKEEPING_MS
            )
            if heartbeat_ms >= housekeeping_ms:
                yield Observation(
                    subject=pair.label,
                    evidence=f"{sender.label} sends heartbeats each {heartbeat_ms} ms, {receiver.label} "
                    "closes "
                    f"after {housekeeping_ms} ms without one",
                    remedy=f"haHousekeepingInterval={3 * heartbeat_ms} at {receiver.label}, or a shorter "
                    "haSendHeartbeatInterval",
                )


@check(
    "flow-control-spins",
    Severity.WARNING,
    mend="Set `haFlowControlEnable=false`, and limit bandwidth in the network (`tc`).",
)
def flow_control_spins(case: Case) -> Iterator[Observation]:
    """RocketMQ's flow control of replication is switched on.

    In the default mode of 5.x it counts the headers of frames only, and at the limit it sends empty frames
    in a tight loop: it takes a CPU and bandwidth and limits nothing. trioha counts bodies and waits.
    """
    for node in case.nodes:
        if node.version.is_5 and not node.uses_controller and node.is_true("haFlowControlEnable"):
            yield Observation(
                subject=node.label,
                evidence=f"{node.place('haFlowControlEnable')} is true, maxHaTransferByteInSecond is "
                f"{node.setting('maxHaTransferByteInSecond') or 'the default'}",
                remedy="haFlowControlEnable=false, then restart the broker",
            )


@check(
    "node-warns",
    Severity.NOTICE,
    mend="Do as the warning says.",
)
def node_warns(case: Case) -> Iterator[Observation]:
    """A trioha node, or `trioha node` on its file, warns of its settings.

    The node has logged the same lines at its start.
    """
    for node in case.nodes:
        warnings: tuple[str, ...] = ()
        if node.status is not None:
            warnings = node.status.warnings
        elif node.is_trioha and node.conf is not None and not isinstance(node.conf.loaded, ConfigError):
            warnings = () if node.conf.loaded is None else node.conf.loaded.warnings
        for text in warnings:
            yield Observation(subject=node.label, evidence=text, remedy="change the setting that it names")


def _problems(conf: ConfFacts) -> tuple[ConfigError, ...]:
    """What `trioha node` refuses in a file."""
    match conf.loaded:
        case InvalidConfig():
            return conf.loaded.problems
        case ConfigError():
            return (conf.loaded,)
        case _:
            return ()


def _is_address(key: str | None) -> bool:
    found = None if key is None else find_setting(key)
    return found is not None and found[0] in ADDRESSES


def _problem_of(value: ConfValue) -> tuple[str, str | None] | None:
    """What is wrong with a value of one of RocketMQ's keys, and a hint; None if it can be used.

    Only numbers, switches, names from a list and addresses: elsewhere RocketMQ accepts more than trioha.
    """
    found = find_setting(value.key)
    if found is None or found[1].key.startswith("trioha."):
        return None
    attribute, setting = found
    if attribute not in ADDRESSES and _types()[attribute] not in {int, bool, BrokerRole, FlushDiskType}:
        return None
    try:
        setting.parse(value.value)
    except InvalidValue as refused:
        return refused.reason, refused.hint
    return None


@cache
def _types() -> dict[str, object]:
    """Types of the settings by attribute."""
    return {one.name: one.type for one in fields(resolve_types(BrokerConfig))}


def _is_same(key: str, written: str, running: str) -> bool:
    if written.strip() == running.strip():
        return True
    found = find_setting(key)
    if found is None:
        return written.strip().lower() == running.strip().lower()
    try:
        return found[1].parse(written.strip()) == found[1].parse(running.strip())
    except InvalidValue:
        return False


def _interval(node: Node, key: str, field: str, default: int) -> int:
    number = node.number(key)
    if number is None and node.status is not None:
        number = getattr(node.status.settings, field)
    return default if number is None else number


def _is_number(text: str) -> bool:
    try:
        parse_int(text.strip().removeprefix("+"), I64)
    except ValueError:
        return False
    return True
