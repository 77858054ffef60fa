"""The archive of a node in virtual time: intervals, faults, what is known of it. Archivers are made here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import evolve
from structlog.testing import capture_logs

from tests.store.support import FILE_BYTES, message, open_log
from trioha.broker_status import ArchiveStatus
from trioha.node.archive_service import ArchiveFault, ArchiveService
from trioha.node.archive_task import ArchiveProgress
from trioha.store.commit_log import CommitLog

URL = "s3://backups/broker-a"
INTERVAL_S = 10.0
DONE = ArchiveProgress(
    generation="0001-5f0c9a12", archived_offset=0, objects=0, object_bytes=0, is_more_waiting=False
)


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    yield log
    log.close()


class Archivers:
    """Archivers that answer with `answers`, one after the other; the last one is repeated."""

    def __init__(self, *answers: ArchiveProgress | ArchiveFault, step_s: float = 0.0) -> None:
        self.answers = list(answers)
        self.step_s = step_s
        self.began: list[float] = []
        """When each archiver began, seconds since the first one."""
        self.stepped: list[float] = []
        """When each step began."""
        self.ended = 0
        self.on_kill: Callable[[], object] = lambda: None
        self._first_s: float | None = None

    @asynccontextmanager
    async def start(self) -> AsyncIterator[Archivers]:
        self.began.append(self._now_s())
        try:
            yield self
        finally:
            self.ended += 1

    async def step(self) -> ArchiveProgress:
        self.stepped.append(self._now_s())
        await trio.sleep(self.step_s)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ArchiveFault):
            raise answer
        return answer

    def kill(self) -> None:
        self.on_kill()

    def _now_s(self) -> float:
        now_s = trio.current_time()
        if self._first_s is None:
            self._first_s = now_s
        return now_s - self._first_s


def service_of(log: CommitLog, archivers: Archivers, **ports: Any) -> ArchiveService:
    ports = {"jitter": lambda: 1.0, **ports}
    return ArchiveService(archivers.start, log, url=URL, interval_s=INTERVAL_S, **ports)


async def run_for(service: ArchiveService, seconds: float) -> bool:
    """Whether the service ended by itself."""
    with trio.move_on_after(seconds) as scope:
        await service.run()
    return not scope.cancelled_caught


async def test_a_step_follows_every_interval_and_at_once_while_more_is_waiting(log, autojump_clock):
    more = evolve(DONE, is_more_waiting=True)
    archivers = Archivers(more, more, DONE, DONE, step_s=0.5)
    assert not await run_for(service_of(log, archivers), 25.0)
    # The interval is that between the beginnings of two steps.
    assert archivers.stepped == [0.0, 0.5, 1.0, 11.0, 21.0]
    assert (archivers.began, archivers.ended) == ([0.0], 1)


async def test_faults_are_tried_again_by_new_archivers_after_a_back_off_of_up_to_a_minute(
    log, autojump_clock
):
    archivers = Archivers(*[ArchiveFault("503 Slow Down")] * 9, DONE)
    service = service_of(log, archivers)
    assert not await run_for(service, 200.0)
    assert archivers.began == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]
    assert archivers.ended == len(archivers.began)
    status = service.status()
    assert (status.state, status.error, status.failures) == ("waiting", "503 Slow Down", 9)


async def test_times_between_two_attempts_vary(log, autojump_clock):
    jitter = iter([0.5, 1.5, 0.75, 1.0])
    archivers = Archivers(ArchiveFault("timeout"))
    await run_for(service_of(log, archivers, jitter=lambda: next(jitter)), 7.0)
    assert archivers.began == [0.0, 0.5, 3.5, 6.5]


async def test_a_step_that_succeeds_ends_the_back_off(log, autojump_clock):
    fault = ArchiveFault("timeout")
    archivers = Archivers(fault, fault, DONE, fault, DONE)
    service = service_of(log, archivers)
    await run_for(service, 15.0)
    assert archivers.began == [0.0, 1.0, 3.0, 14.0]
    assert (service.status().state, service.status().error, service.status().failures) == ("running", "", 3)


@pytest.mark.parametrize("state", ["fenced", "damaged"])
async def test_a_final_fault_ends_the_archive_and_stays_shown(log, autojump_clock, state):
    archivers = Archivers(evolve(DONE, archived_offset=500), ArchiveFault("why", state=state))
    service = service_of(log, archivers)
    with capture_logs() as logs:
        assert await run_for(service, 1000.0)
    assert (archivers.began, archivers.ended) == ([0.0], 1)
    status = service.status()
    assert (status.state, status.error, status.archived_offset) == (state, "why", 500)
    assert service.archived_offset() == 500
    assert [(line["log_level"], line.get("state")) for line in logs] == [("info", None), ("error", state)]


async def test_what_a_step_has_archived_before_a_damaged_record_is_shown(log, autojump_clock):
    fault = ArchiveFault("why", state="damaged", archived_offset=300, generation="0002-b")
    service = service_of(log, Archivers(fault))
    assert await run_for(service, 1.0)
    status = service.status()
    assert (status.archived_offset, status.generation, service.archived_offset()) == (300, "0002-b", 300)


async def test_a_fault_that_lasts_is_logged_once_a_minute(log, autojump_clock):
    with capture_logs() as logs:
        await run_for(service_of(log, Archivers(ArchiveFault("timeout"))), 200.0)
    assert [line["failures"] for line in logs] == [1, 7, 8, 9]


async def test_what_is_archived_is_unknown_at_first_and_nothing_if_it_cannot_be_learned(log, autojump_clock):
    archivers = Archivers(ArchiveFault("timeout"), evolve(DONE, archived_offset=700), step_s=0.1)
    service = service_of(log, archivers)
    assert (service.archived_offset(), service.status().archived_offset) == (None, None)
    await run_for(service, 0.5)
    assert (service.archived_offset(), service.status().archived_offset) == (0, None)
    await run_for(service, 0.5)
    assert (service.archived_offset(), service.status().archived_offset) == (700, 700)


async def test_status_has_lag_age_and_sums(log, autojump_clock):
    first_end = log.append(message(bytes(1000))).end_offset
    last_end = log.append(message(bytes(1000))).end_offset
    archivers = Archivers(
        evolve(DONE, archived_offset=first_end, objects=2, object_bytes=300, is_more_waiting=True),
        evolve(DONE, archived_offset=first_end, objects=1, object_bytes=50),
        evolve(DONE, archived_offset=last_end),
    )
    stored_ms = stored_at(log, first_end)
    service = service_of(log, archivers, wall_ms=lambda: stored_ms + 4321)
    await run_for(service, 5.0)
    assert service.status() == ArchiveStatus(
        url=URL,
        state="running",
        generation="0001-5f0c9a12",
        archived_offset=first_end,
        lag_bytes=last_end - first_end,
        lag_ms=4321,
        objects=3,
        object_bytes=350,
    )
    service = service_of(log, Archivers(evolve(DONE, archived_offset=last_end)))
    await run_for(service, 5.0)
    assert (service.status().lag_bytes, service.status().lag_ms) == (0, 0)


async def test_the_age_is_that_of_the_record_after_a_blank(log, autojump_clock):
    ends = [0]
    while len(log.files) < 2:
        ends.append(log.append(message(bytes(20_000))).end_offset)
    blank = ends[-2]
    assert blank < FILE_BYTES
    service = service_of(
        log,
        Archivers(evolve(DONE, archived_offset=blank)),
        wall_ms=lambda: stored_at(log, FILE_BYTES) + 77,
    )
    await run_for(service, 1.0)
    assert service.status().lag_ms == 77


async def test_the_age_at_an_offset_that_is_none_of_a_record_is_unknown(log, autojump_clock):
    log.append(message(bytes(1000)))
    service = service_of(log, Archivers(evolve(DONE, archived_offset=500)))
    await run_for(service, 1.0)
    assert service.status().lag_ms is None


async def test_a_log_that_begins_anew_is_not_archived_yet(log, autojump_clock):
    service = service_of(log, Archivers(evolve(DONE, archived_offset=500)))
    await run_for(service, 1.0)
    log.start_at(4 * FILE_BYTES)
    assert (service.status().state, service.archived_offset()) == ("starting", None)
    await run_for(service, 1.0)
    assert (service.status().state, service.archived_offset()) == ("running", 500)


@pytest.mark.parametrize("what", ["cut before", "cut after", "restart"])
@pytest.mark.parametrize("answer", ["progress", "waiting", "damaged"])
async def test_an_archiver_of_a_log_that_changes_is_killed_and_its_answer_counts_for_nothing(
    log, autojump_clock, what, answer
):
    ends = [log.append(message(bytes(1000))).end_offset for _ in range(3)]
    log.flushed.advance(log.max_offset)
    late: dict[str, ArchiveProgress | ArchiveFault] = {
        "progress": evolve(DONE, archived_offset=ends[2]),
        "waiting": ArchiveFault("killed"),
        "damaged": ArchiveFault("why", state="damaged", archived_offset=ends[2], generation="0002-b"),
    }
    archivers = Archivers(
        evolve(DONE, archived_offset=ends[1]), late[answer], evolve(DONE, archived_offset=7), step_s=1.0
    )
    service = service_of(log, archivers)
    bytes_when_killed = []
    archivers.on_kill = lambda: bytes_when_killed.append([bytes(file.view) for file in log.files])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        # Within the second step.
        await trio.sleep(10.5)
        assert service.archived_offset() == ends[1]
        if what == "restart":
            log.archive(log.directory.with_name(f"{log.directory.name}-aside"))
            assert bytes_when_killed == [[]]
        else:
            offset = ends[0] if what == "cut before" else ends[1]
            before = bytes(log.files[0].view)
            log.cut(offset, last_store_timestamp_ms=log.starts.store_timestamp_before(offset))
            assert bytes_when_killed == [[before]]
        expected = ends[1] if what == "cut after" else None
        assert service.archived_offset() == expected
        # The second step has ended, a new archiver works.
        await trio.sleep(1.0)
        assert (service.archived_offset(), service.status().failures) == (expected, 0)
        assert (len(archivers.began), archivers.ended) == (1, 1)
        await trio.sleep(1.6)
        assert (service.archived_offset(), service.status().state) == (7, "running")
        assert len(archivers.began) == 2
        nursery.cancel_scope.cancel()


def stored_at(log: CommitLog, offset: int) -> int:
    """Store timestamp of the record there."""
    return int.from_bytes(log.read(offset, 100)[56:64], "big")
