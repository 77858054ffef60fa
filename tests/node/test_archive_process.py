"""The process of an archiver, which is a script here: questions, answers, and every way to end."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from trioha.config.broker import BrokerConfig
from trioha.errors import ConfigError
from trioha.extras import how_to_install
from trioha.node import archive, archive_process
from trioha.node.archive import check_archive
from trioha.node.archive_process import ANSWER_BYTES_MAX, ArchiverProcess, archiver_process
from trioha.node.archive_service import ArchiveFault
from trioha.node.archive_task import ArchiveProgress, ArchiveTask

WITHIN_S = 75
TASK = ArchiveTask(
    url="file:///archive",
    store="/store",
    commit_log="/store/commitlog",
    record_dir=None,
    cluster_name="c",
    broker_name="b",
    interval_s=10.0,
    keep_ms=None,
    log_as_json=False,
)
SAY = """
import json, os, sys, time
def say(**values):
    print(json.dumps(values), flush=True)
def progress(offset):
    say(generation="0001-a", archived_offset=offset, objects=1, object_bytes=2, is_more_waiting=False)
task = json.loads(sys.argv[-1])
"""


@asynccontextmanager
async def running(
    script: str, *, end_offset: Callable[[], int] = lambda: 4711
) -> AsyncIterator[ArchiverProcess]:
    """The archiver `script`."""
    program = (sys.executable, "-c", SAY + script)
    with trio.fail_after(WITHIN_S):
        async with archiver_process(TASK, end_offset=end_offset, program=program) as archiver:
            yield archiver


async def fault_of(script: str) -> tuple[str, str]:
    """State and reason of the fault with which the first step ends."""
    with pytest.raises(ArchiveFault) as ended:
        async with running(script) as archiver:
            await archiver.step()
    return ended.value.state, ended.value.reason


async def test_a_step_answers_questions_for_the_end_of_the_log_and_returns_what_it_has_reached():
    script = """
for line in sys.stdin:
    assert line == "step\\n", line
    say(ask="end")
    first = int(sys.stdin.readline())
    say(ask="end")
    progress(first + int(sys.stdin.readline()))
"""
    async with running(script) as archiver:
        for _ in range(2):
            assert await archiver.step() == ArchiveProgress(
                generation="0001-a", archived_offset=9422, objects=1, object_bytes=2, is_more_waiting=False
            )
        pid = archiver.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_archiver_has_its_task_as_its_last_argument():
    script = """
sys.stdin.readline()
say(state="waiting", reason=f"{task['url']} {task['keep_ms']} {task['interval_s']}")
"""
    assert await fault_of(script) == ("waiting", "file:///archive None 10.0")


async def test_an_archiver_that_ends_says_why():
    for state in ("waiting", "fenced", "damaged"):
        assert await fault_of(f'say(state="{state}", reason="why")') == (state, "why")


async def test_an_archiver_that_ends_otherwise_is_a_fault_that_is_tried_again(capfd):
    for script, reason in (
        ("sys.exit(3)", "the archiver ended with code 3"),
        ("os.kill(os.getpid(), 9)", f"the archiver was killed by signal {signal.SIGKILL}"),
        ("print('{', end='', flush=True); sys.exit(1)", "the archiver ended with code 1"),
        ("raise ZeroDivisionError", "the archiver ended with code 1"),
    ):
        assert await fault_of(script) == ("waiting", reason)


@pytest.mark.parametrize(
    "script",
    [
        "os.close(1); time.sleep(1000)",
        f"sys.stdout.write('x' * {2 * ANSWER_BYTES_MAX}); sys.stdout.flush(); time.sleep(1000)",
    ],
)
async def test_an_archiver_that_answers_nothing_sound_is_killed(script, monkeypatch):
    monkeypatch.setattr(archive_process, "STOP_S", 0.1)
    assert await fault_of(script) == ("waiting", "the archiver does not answer")


async def test_an_answer_that_is_none_is_a_fault_that_is_tried_again():
    for line in (
        "x",
        "",
        "5",
        "null",
        "[" * 10_000,
        '{"a":1}',
        '{"ask":"what"}',
        '{"state":"waiting"}',
        '{"state":"waiting","reason":5}',
        '{"state":"asleep","reason":"why"}',
        '{"state":[],"reason":"why"}',
        '{"state":"damaged","reason":"why","archived_offset":"5"}',
        '{"generation":"g","archived_offset":"5","objects":1,"object_bytes":2,"is_more_waiting":false}',
        '{"generation":"g","archived_offset":5,"objects":1,"object_bytes":2}',
    ):
        fault = await fault_of(f"print({line!r}, flush=True); sys.stdin.read()")
        assert fault == ("waiting", f"the archiver gave a wrong answer: {line[:200]}")


async def test_a_killed_archiver_ends_within_its_step():
    async with running("say(ask='end'); time.sleep(1000)", end_offset=lambda: 1) as archiver:
        archiver.kill()
        with pytest.raises(ArchiveFault, match=f"was killed by signal {signal.SIGKILL}"):
            await archiver.step()
        # It may have ended by then.
        archiver.kill()


async def test_a_step_that_runs_while_the_node_stops_may_end(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_process, "STOP_S", WITHIN_S)
    done = tmp_path / "done"
    asked = trio.Event()

    def end_offset() -> int:
        asked.set()
        return 1

    script = f"""
sys.stdin.readline()
say(ask="end")
sys.stdin.readline()
time.sleep(0.2)
progress(1)
assert sys.stdin.readline() == ""
open({str(done)!r}, "w").close()
"""
    async with running(script, end_offset=end_offset) as archiver:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(archiver.step)
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert not done.exists()
    assert done.exists()


async def test_a_step_that_takes_too_long_is_abandoned_when_the_node_stops(monkeypatch):
    monkeypatch.setattr(archive_process, "STOP_S", 0.1)
    async with running("time.sleep(1000)") as archiver:
        pid = archiver.pid
        with trio.move_on_after(0.1):
            await archiver.step()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_program_that_cannot_be_started_is_a_fault_that_is_tried_again(tmp_path):
    with pytest.raises(ArchiveFault, match="no process for the archiver") as fault:
        async with archiver_process(TASK, end_offset=lambda: 0, program=(str(tmp_path / "none"),)):
            pass
    assert fault.value.state == "waiting"


def test_an_archive_without_its_library_is_one_clear_line(monkeypatch):
    config = BrokerConfig(archive_url="file:///archive")
    check_archive(config)
    monkeypatch.setattr(archive, "LIBRARY", "a_library_that_is_not_there")
    check_archive(BrokerConfig())
    with pytest.raises(ConfigError) as refused:
        check_archive(config)
    assert str(refused.value).endswith(
        f"trioha.archiveUrl: archives need a_library_that_is_not_there; {how_to_install('archive')}"
    )
