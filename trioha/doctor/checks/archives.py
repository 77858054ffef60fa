"""The archives of trioha nodes (`trioha.archiveUrl`), by what the nodes report of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from trioha.broker_status import ArchiveStatus
from trioha.doctor.case import Case, Node, some_of
from trioha.doctor.findings import Observation, check
from trioha.severity import Severity

LATE_S: Final = 300
"""Age of bytes that should have been archived, beyond the interval of the node."""
URL_KEY: Final = "trioha.archiveUrl"
INTERVAL_KEY: Final = "trioha.archiveInterval"


@check(
    "archive-fenced",
    Severity.CRITICAL,
    mend="Give each broker a `trioha.archiveUrl` of its own, or stop the other writer; then restart the "
    "node.",
)
def archive_fenced(case: Case) -> Iterator[Observation]:
    """A node no longer archives, since another writer has its archive.

    One broker has one archive, and one writer at a time writes it: a slave with the URL of its master, or
    `trioha archive` beside the node, takes it over. The node has stopped to archive until its next start.
    """
    for node, archive in _archives(case):
        if archive.state == "fenced":
            yield Observation(
                subject=node.label,
                evidence=archive.error or f"{archive.url} has another writer",
                remedy=f"{URL_KEY} of its own in the broker.conf of one of both, then restart the node",
            )


@check(
    "archive-damaged",
    Severity.CRITICAL,
    mend="`trioha verify STORE` names the record. Make the node a slave of one with a sound log, or restore "
    "its store from the archive, and restart it.",
)
def archive_damaged(case: Case) -> Iterator[Observation]:
    """A node no longer archives, since a record of its log is damaged.

    Only whole, checked records are archived. What came after the damaged one is in no archive.
    """
    for node, archive in _archives(case):
        if archive.state == "damaged":
            yield Observation(
                subject=node.label,
                evidence=archive.error or f"archived up to {archive.archived_offset}",
                remedy=f"trioha verify {node.setting('storePathRootDir') or 'STORE'}",
            )


@check(
    "archive-fails",
    Severity.WARNING,
    mend="Follow the evidence: the network to the object storage, the credentials in the environment of the "
    "node, the permissions of the bucket, or its space.",
)
def archive_fails(case: Case) -> Iterator[Observation]:
    """A node cannot archive at the moment.

    It tries again by itself. Until then a restore misses what came since, and with
    `trioha.archiveBeforeDelete` the node deletes no log file that is not archived, until its disk is nearly
    full.
    """
    for node, archive in _archives(case):
        if archive.state == "waiting":
            lag = "an unknown part" if archive.lag_bytes is None else f"{archive.lag_bytes} bytes"
            yield Observation(
                subject=node.label,
                evidence=f"{archive.error}; {lag} of the log are not archived, {archive.failures} attempts "
                "failed",
                remedy=f"see that the node reaches {archive.url} with its credentials",
            )


@check(
    "archive-behind",
    Severity.WARNING,
    mend="Look at the bandwidth to the object storage and at the CPU time of the archiver; "
    "`trioha.archiveInterval` should be seconds.",
)
def archive_behind(case: Case) -> Iterator[Observation]:
    """An archive is minutes behind its log.

    The oldest byte that is not archived is older than five minutes and `trioha.archiveInterval`, or nothing
    is known of the archive five minutes after the start. After a first start with a large log that is usual,
    and the age shrinks.
    """
    for node, archive in _archives(case):
        late_ms = LATE_S * 1000 + (node.number(INTERVAL_KEY) or 0)
        clock = None if node.broker is None else node.broker.clock
        if archive.state == "running" and archive.lag_ms is not None and archive.lag_ms > late_ms:
            evidence = (
                f"{archive.lag_bytes} bytes are not archived, the oldest for {archive.lag_ms // 1000} s"
            )
        elif archive.state == "starting" and clock is not None and clock.uptime_s * 1000 > late_ms:
            evidence = f"nothing is known of the archive {clock.uptime_s} s after the start"
        else:
            continue
        yield Observation(
            subject=node.label,
            evidence=evidence,
            remedy=f"look at the way to {archive.url}; trioha status HOST:PORT shows whether the age shrinks",
        )


@check(
    "archive-hole",
    Severity.CRITICAL,
    mend="Set `trioha.archiveBeforeDelete=true`, and see that the disk has room for what is not archived: "
    "above `diskSpaceCleanForciblyRatio` files are deleted all the same.",
)
def archive_hole(case: Case) -> Iterator[Observation]:
    """A node deleted log files before they were archived.

    They are in no archive, and a restore misses them: the archive goes on in a new generation after the hole.
    """
    for node, archive in _archives(case):
        if archive.files_deleted_unarchived:
            yield Observation(
                subject=node.label,
                evidence=f"{archive.files_deleted_unarchived} log files since the start",
                remedy="trioha.archiveBeforeDelete=true"
                if not node.is_true("trioha.archiveBeforeDelete")
                else "free the disk of the log, or give it a larger one",
            )


@check(
    "archive-shared",
    Severity.CRITICAL,
    mend="Give each broker, slaves included, a `trioha.archiveUrl` of its own.",
)
def archive_shared(case: Case) -> Iterator[Observation]:
    """Two nodes archive to one URL.

    An archive is that of one broker: the nodes fence each other, and only the one that started last archives.
    """
    by_url: dict[str, list[Node]] = defaultdict(list)
    for node in case.nodes:
        if url := (node.setting(URL_KEY) or "").rstrip("/"):
            by_url[url].append(node)
    for url, nodes in by_url.items():
        if len(nodes) > 1:
            yield Observation(
                subject=nodes[0].label,
                evidence=f"{URL_KEY}={url} of {some_of([node.label for node in nodes])}",
                remedy=f"{URL_KEY}={url}-ID with another ID at each node, then restart all but one",
            )


def _archives(case: Case) -> Iterator[tuple[Node, ArchiveStatus]]:
    for node in case.running:
        if node.status is not None and node.status.archive is not None:
            yield node, node.status.archive
