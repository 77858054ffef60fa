"""The simulated processes and disks do what they say."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import trio
import trio.testing

from tests.simulation.failover.disk import Disk
from tests.simulation.failover.network import Network, Port
from tests.simulation.failover.processes import CURRENT, Process, hanging_enabled
from tests.simulation.network import LinkQuality
from tests.simulation.runner import memory_folder


async def test_a_hung_process_runs_no_task_and_all_its_timers_are_late_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    process = Process("b1")
    woken: list[tuple[str, float]] = []
    event = trio.Event()

    async def sleep_for(name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        woken.append((name, trio.current_time() - started_s))

    async def wait_for_event() -> None:
        with trio.move_on_after(4):
            await event.wait()
            woken.append(("event", trio.current_time() - started_s))

    async def live() -> None:
        CURRENT.set(SimpleNamespace(process=process))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleep_for, "early", 1)
            nursery.start_soon(sleep_for, "first", 3)
            nursery.start_soon(sleep_for, "second", 5)
            nursery.start_soon(wait_for_event)
            nursery.start_soon(sleep_for, "late", 20)

    started_s = trio.current_time()
    with hanging_enabled():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live)
            await trio.sleep(2)
            process.hang()
            await trio.sleep(1.5)
            event.set()
            await sleep_for("another process", 1)
            await trio.sleep(5.5)
            process.resume()
    assert sorted(woken) == [
        ("another process", 4.5),
        ("early", 1),
        ("event", 10),
        ("first", 10),
        ("late", 20),
        ("second", 10),
    ]


@pytest.mark.parametrize("direct", [False, True])
async def test_what_wakes_a_hung_process_when_it_is_killed_sends_nothing(
    autojump_clock: trio.testing.MockClock, direct: bool
) -> None:
    process = Process("b1")
    quality = LinkQuality(0.1, 1e6, 1 << 16, dribble=0.0)
    network = Network(quality, direct, random.Random(1))
    port = Port()
    link = await network.connect("b1", "b2", port)
    assert await port.next() is link
    held: list[bytes] = []

    async def live() -> None:
        CURRENT.set(SimpleNamespace(process=process))
        held.append(await link.near.receive_some())
        with pytest.raises(trio.BrokenResourceError):
            await link.near.send_all(b"report")
        await link.near.aclose()

    with hanging_enabled():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live)
            await trio.testing.wait_all_tasks_blocked()
            process.hang()
            await link.far.send_all(b"frame")
            await trio.sleep(1)
            network.kill("b1")
            process.resume()
            assert await link.far.receive_some() == b""
    assert held == [b"frame"]


def sync(disk: Disk, *paths: Path) -> None:
    """Sync files and folders, in this order."""
    with patch.object(os, "fsync", disk.synced):
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def test_a_kill_leaves_what_was_written_and_a_power_cut_what_was_synced_or_more(tmp_path: Path) -> None:
    left: set[bytes | None] = set()
    for seed in range(40):
        disk = Disk(tmp_path / f"{seed}", random.Random(seed))
        file = disk.root / "checkpoint"
        file.write_bytes(b"old")
        sync(disk, file, disk.root)
        file.write_bytes(b"new")
        (disk.root / "unsynced").write_bytes(b"x")
        killed, cut = disk.after_kill(), disk.after_power_cut()
        assert {str(path): one.content for path, one in killed.files.items()} == {
            "checkpoint": b"new",
            "unsynced": b"x",
        }
        content = cut.files[Path("checkpoint")].content
        left |= {content, b"there" if Path("unsynced") in cut.files else None}
        disk.restore(cut, is_synced=True)
        assert file.read_bytes() == content
        again = disk.after_power_cut()
        assert {path: one.content for path, one in again.files.items()} == {
            path: one.content for path, one in cut.files.items()
        }
    assert left == {b"old", b"new", None, b"there"}


def test_what_was_synced_stays_after_a_kill_and_a_power_cut_but_not_in_the_place_of_a_renamed_folder() -> (
    None
):
    """In memory as simulations are: there a folder that is made anew has another inode."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        for seed in range(20):
            disk = Disk(Path(folder).resolve() / f"{seed}", random.Random(seed))
            log = disk.root / "commitlog"
            log.mkdir()
            (log / "0").write_bytes(b"synced")
            sync(disk, log / "0", log, disk.root)
            disk.restore(disk.after_kill(), is_synced=False)
            assert disk.after_power_cut().files[Path("commitlog/0")].content == b"synced"
            log.rename(disk.root / "kept")
            log.mkdir()
            assert Path("commitlog/0") not in disk.after_power_cut().files
