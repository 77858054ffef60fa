"""Small files that are replaced as a whole."""

import os
from pathlib import Path

import pytest

from trioha.store import atomic_file
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


@pytest.mark.parametrize("crash_at", range(8))
def test_a_crash_at_any_step_leaves_the_old_or_the_new_content(tmp_path, monkeypatch, crash_at):
    path = tmp_path / "topics.json"
    replace_file(path, b"one.")
    replace_file(path, b"two.")
    steps = 0

    class Crash(BaseException):
        pass

    def step():
        nonlocal steps
        if steps == crash_at:
            raise Crash
        steps += 1

    def sync(fd):
        step()
        os.fsync(fd)

    def rename(self, target):
        step()
        os.rename(self, target)  # noqa: PTH104 - Path's own is what is replaced
        step()
        return target

    monkeypatch.setattr(atomic_file, "sync_whole", sync)
    monkeypatch.setattr(Path, "replace", rename)
    try:
        replace_file(path, b"three.")
    except Crash:
        assert load_file(path, parse) in {b"two.", b"three."}
    else:
        assert crash_at > 5
        assert load_file(path, parse) == b"three."
