"""The clocks of the brokers."""

from __future__ import annotations

from collections.abc import Iterator

from trioha.doctor.case import Case
from trioha.doctor.findings import Observation, check
from trioha.severity import Severity


@check(
    "clocks-apart",
    Severity.WARNING,
    mend="Run chrony or systemd-timesyncd on both hosts.",
)
def clocks_apart(case: Case) -> Iterator[Observation]:
    """The clocks of master and slave differ.

    Store times of messages are the master's. After a change of roles delayed messages are delivered too
    early or too late, transactions are checked at other times, `--from TIME` finds other messages, and lag
    in seconds is wrong. A broker reports its start and its running time in whole seconds: the least
    difference that its answers allow is compared with `--clocks-apart` (2 s).
    """
    limit_ms = case.thresholds.clocks_apart_ms
    for pair in case.pairs:
        master = None if pair.master.broker is None else pair.master.broker.clock
        slave = None if pair.slave.broker is None else pair.slave.broker.clock
        if master is None or slave is None:
            continue
        ahead_ms = slave.ahead_ms_min - master.ahead_ms_max
        late_ms = master.ahead_ms_min - slave.ahead_ms_max
        apart_ms = max(ahead_ms, late_ms)
        if apart_ms > limit_ms:
            word = "ahead of" if ahead_ms > 0 else "behind"
            yield Observation(
                subject=pair.label,
                evidence=f"the slave's clock is at least {apart_ms / 1000:.1f} s {word} its master's",
                remedy="timedatectl set-ntp true, on both hosts",
            )
