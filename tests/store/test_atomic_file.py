"""Small files that are replaced as a whole."""

import sys
from contextlib import suppress

import pytest

from tests.store.crashes import Crash, CrashingDisk
from trioha.store.atomic_file import backup_of, load_file, replace_file


def parse(data):
    if not data.endswith(b"."):
        raise ValueError("it has no end")
    return data


def test_a_file_is_replaced_and_its_last_state_kept(tmp_path):
    path = tmp_path / "folder" / "topics.json"
    assert load_file(path, parse) is None
    replace_file(path, b"one.")
    assert not backup_of(path).exists()
    replace_file(path, b"two.")
    assert (load_file(path, parse), backup_of(path).read_bytes()) == (b"two.", b"one.")
    assert sorted(file.name for file in path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_the_backup_stands_for_a_file_that_is_damaged_or_gone(tmp_path):
    path = tmp_path / "topics.json"
    replace_file(path, b"one.")
    replace_file(path, b"two.")
    path.write_bytes(b"tw")
    assert load_file(path, parse) == b"one."
    path.unlink()
    assert load_file(path, parse) == b"one."
    backup_of(path).write_bytes(b"on")
    with pytest.raises(ValueError, match="no end"):
        load_file(path, parse)


def test_a_crash_at_any_step_leaves_the_old_or_the_new_content(tmp_path):
    path = tmp_path / "topics.json"
    replace_file(path, b"one.")
    replace_file(path, b"two.")
    crashes, found = 0, b""
    while found != b"three.":
        try:
            with CrashingDisk(crashes).in_use():
                replace_file(path, b"three.")
        except Crash:
            crashes += 1
        found = load_file(path, parse)
        assert found in {b"two.", b"three."}, crashes
    assert crashes > 4


@pytest.mark.parametrize("left", [False, True], ids=["", "beside what a crash has left"])
def test_others_may_read_nothing_of_a_private_file_at_any_step(tmp_path, left):
    """Neither of the file nor of its backup: a broker.conf has passwords and secret keys."""
    path = tmp_path / "broker.conf"
    path.write_bytes(b"one.")
    path.chmod(0o600)
    if left:
        path.with_name("broker.conf.tmp").touch(0o644)
    seen = set()

    def look(*_):
        for one in tmp_path.iterdir():
            with suppress(FileNotFoundError):
                status = one.stat()
                if status.st_size or not left:
                    seen.add((one.name, oct(status.st_mode & 0o777)))

    sys.setprofile(look)
    try:
        replace_file(path, b"two.", mode=0o600)
    finally:
        sys.setprofile(None)
    assert seen == {(f"broker.conf{suffix}", "0o600") for suffix in ("", ".bak", ".tmp")}
    assert backup_of(path).read_bytes() == b"one."
