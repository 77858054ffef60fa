"""Who may use a store: the lock file, the process that `abort` names, and what a removed file changes."""

import os
import subprocess
import sys

import pytest

from tests.store.support import open_store
from trioha.errors import StoreError
from trioha.store.lock import AbortFile, StoreLock

HOLDS = "import sys; file = open(sys.argv[1], 'r+b'); print(flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path):
    """A process that has the file `lock` of a store open."""
    (tmp_path / "lock").write_bytes(b"lock")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, tmp_path / "lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process
        process.stdin.close()


def locked(root):
    """Whether the store can be locked; the lock is released again."""
    lock = StoreLock(root)
    lock.acquire()
    lock.release()


# RocketMQ 5.3 writes the number only, and this is how its own lock is found, too.
@pytest.mark.parametrize("rest", ["", "\n0d2a8a5e-0000-4000-8000-000000000000"])
@pytest.mark.parametrize("change", ["kept", "removed", "replaced"])
def test_a_store_is_refused_while_the_process_that_abort_names_has_its_lock_file(
    tmp_path, holder, rest, change
):
    (tmp_path / "abort").write_text(f"{holder.pid}{rest}")
    if change != "kept":
        (tmp_path / "lock").unlink()
    if change == "replaced":
        (tmp_path / "lock").write_bytes(b"lock")
    with pytest.raises(StoreError, match=f"is used by process {holder.pid}, which has locked") as refused:
        locked(tmp_path)
    assert "\n" not in str(refused.value)
    holder.stdin.close()
    holder.wait()
    locked(tmp_path)


def test_a_store_is_refused_through_a_link_and_through_the_folder_of_its_log(tmp_path, holder):
    (tmp_path / "abort").write_text(str(holder.pid))
    (tmp_path / "lock").unlink()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is used by process"):
        locked(tmp_path / "link")
    (tmp_path / "lock").touch()
    (tmp_path / "new").mkdir()
    with pytest.raises(StoreError, match="give this one another storePathCommitLog"):
        StoreLock(tmp_path / "new", commit_log=tmp_path / "commitlog").acquire()


@pytest.mark.parametrize(
    "content",
    ["", "\n", "x", "-1", "99999999999999999999999", "../1", str(os.getpid()), str(os.getppid())],
    # Names without numbers of processes: workers of pytest collect tests of the same names.
    ids=["empty", "a line", "text", "negative", "huge", "a path", "own", "parent"],
)
def test_an_abort_of_a_process_that_does_not_have_the_store_is_no_obstacle(tmp_path, content):
    """A process id is soon that of another process, in a container mostly of the node itself."""
    (tmp_path / "abort").write_text(content)
    locked(tmp_path)


def test_without_proc_nobody_knows_and_the_lock_alone_counts(tmp_path, holder, monkeypatch):
    monkeypatch.setattr("trioha.store.lock._PROCESSES", tmp_path / "no-proc")
    (tmp_path / "abort").write_text(str(holder.pid))
    assert AbortFile(tmp_path).running_user(tmp_path / "lock") is None
    locked(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("removed", "the store's lock file is gone"),
        ("replaced", "the store's lock file was replaced"),
        ("folder", "the store's lock file is gone"),
    ],
)
def test_an_open_store_finds_its_lock_file_gone_or_replaced(tmp_path, change, reason):
    root = tmp_path / "store"
    store = open_store(root)
    store.lock.check()
    if change == "folder":
        root.rename(tmp_path / "moved")
    else:
        (root / "lock").unlink()
    if change == "replaced":
        (root / "lock").write_bytes(b"lock")
    with pytest.raises(StoreError, match=reason):
        store.lock.check()


def test_a_lock_file_that_is_replaced_while_it_is_locked_is_no_lock(tmp_path, monkeypatch):
    def replace(fd, *_):
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").write_bytes(b"lock")

    monkeypatch.setattr("fcntl.lockf", replace)
    with pytest.raises(StoreError, match="the store's lock file was replaced"):
        StoreLock(tmp_path).acquire()
