"""Disks with faults: what fails, what does not, and when a node dies at a call to its disk."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.faults import disks
from tests.faults.controlled.dying import CUT, ROLE, Death

# Does everything that a disk can refuse, and says how it went.
TRY_ALL = """
import errno, json, os, pathlib, sys
from tests.faults import disks
fault, folder = map(pathlib.Path, sys.argv[1:])
disks.install(fault)
def outcome(call):
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
whole = os.open(folder / "whole", os.O_RDWR | os.O_CREAT)
os.pwrite(whole, bytes(8192), 0)
sparse = os.open(folder / "sparse", os.O_RDWR | os.O_CREAT)
os.ftruncate(sparse, 1 << 20)
os.pwrite(sparse, bytes(4096), 8192)
for word in json.loads(sys.stdin.read()):
    disks.set_fault(fault, word)
    print(json.dumps({
        "fsync": outcome(lambda: os.fsync(whole)),
        "fdatasync": outcome(lambda: os.fdatasync(whole)),
        "reserve": outcome(lambda: os.posix_fallocate(sparse, 65536, 4096)),
        "overwrite": outcome(lambda: os.pwrite(whole, b"x" * 8192, 0)),
        "append": outcome(lambda: os.pwrite(whole, b"x", 8192)),
        "overwrite sparse": outcome(lambda: os.pwrite(sparse, b"x" * 20, 8200)),
        "fill hole": outcome(lambda: os.pwrite(sparse, b"x" * 20, 100_000)),
        "half in hole": outcome(lambda: os.pwrite(sparse, b"x" * 20, 12_280)),
    }))
    os.ftruncate(whole, 8192)
    os.ftruncate(sparse, 12_288)
    os.ftruncate(sparse, 1 << 20)
"""
SYNCS = {"fsync", "fdatasync"}
TAKE_SPACE = {"reserve", "append", "fill hole", "half in hole"}


def test_a_disk_fails_what_its_fault_says_and_nothing_else(tmp_path):
    words = ["fsync", "full", "healthy"]
    done = subprocess.run(
        [sys.executable, "-c", TRY_ALL, tmp_path / "fault", tmp_path],
        input=json.dumps(words),
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(zip(words, map(json.loads, done.stdout.splitlines()), strict=True))
    everything = set(found["healthy"])
    assert found["fsync"] == {name: "EIO" if name in SYNCS else "done" for name in everything}
    assert found["full"] == {name: "ENOSPC" if name in TAKE_SPACE else "done" for name in everything}
    assert found["healthy"] == dict.fromkeys(everything, "done")


FILL_AND_FREE = """
import errno, pathlib, sys
from tests.faults.disks import SmallDisk
folder = pathlib.Path(sys.argv[1])
disk = SmallDisk(folder)
(folder / "kept").write_bytes(b"x" * 5000)
disk.fill()
try:
    (folder / "more").write_bytes(b"x" * 5000)
except OSError as error:
    print(errno.errorcode[error.errno], (folder / "more").stat().st_size)
disk.free()
(folder / "more").write_bytes(b"y" * 5000)
disk.close()
"""


@pytest.mark.skipif(not disks.private_mounts(), reason="mounting takes root")
def test_a_small_disk_is_full_to_the_last_byte_and_leaves_what_it_held_but_no_mount(tmp_path):
    folder = tmp_path / "disk"
    done = subprocess.run(
        [*disks.private_mounts(), sys.executable, "-c", FILL_AND_FREE, folder],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["ENOSPC 0"]
    assert not os.path.ismount(folder)
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == {"kept": 5000, "more": 5000}


def test_a_node_dies_at_the_call_that_its_file_names_and_at_no_other(tmp_path, monkeypatch):
    signals = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    file = tmp_path / "node.death"
    death = Death(file)

    def reach(*doings):
        for doing in doings:
            death.begin(doing)
            death.reach()
            death.end()

    # Without a file, before anything begins, in something else, and at calls of an earlier time.
    reach(CUT)
    file.write_text("cut 2")
    death.reach()
    reach(ROLE, CUT, CUT, CUT)
    # Disarmed meanwhile.
    death.begin(CUT)
    death.reach()
    file.unlink()
    death.reach()
    assert signals == []
    file.write_text("cut 2")
    death.begin(CUT)
    death.reach()
    assert file.exists()
    death.reach()
    assert signals == [(os.getpid(), signal.SIGKILL)]
    # What is gone tells the runner that the node died of it.
    assert not file.exists()
