"""`trioha configs` lists the files of `configs/` and copies them. (tests/test_packaging.py: from a wheel.)"""

import json
from pathlib import Path

import pytest

from trioha.cli import main

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = {path.relative_to(CONFIGS).as_posix(): path for path in CONFIGS.rglob("*") if path.is_file()}


@pytest.mark.parametrize("options", [[], ["--list"]])
def test_every_file_is_listed_with_its_first_sentence(options, capsys):
    assert main(["configs", *options, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["folder"] == str(CONFIGS)
    summaries = {one["name"]: one["summary"] for one in listed["files"]}
    assert list(summaries) == sorted(FILES)
    assert all(summaries.values())
    assert summaries["sync-slave.conf"] == "Slave of a synchronous pair"
    assert main(["configs", *options]) == 0
    shown = capsys.readouterr().out
    for name, summary in summaries.items():
        assert name in shown
        assert summary in shown


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        ("sync-master.conf", {"sync-master.conf": "sync-master.conf"}),
        ("systemd/trioha@.service", {"trioha@.service": "systemd/trioha@.service"}),
        ("grafana/", {name: name for name in FILES if name.startswith("grafana/")}),
    ],
)
def test_a_file_or_a_folder_is_copied(name, copied, tmp_path, capsys):
    target = tmp_path / "new/folder"
    assert main(["configs", "--copy", name, str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"copied": [str(target / one) for one in sorted(copied)]}
    there = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if path.is_file()}
    assert sorted(there) == sorted(copied)
    for one, source in copied.items():
        assert there[one].read_bytes() == FILES[source].read_bytes()


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_there_stays_and_nothing_is_copied(is_link, tmp_path, capsys):
    there = tmp_path / "grafana/trioha-dashboard.json"
    there.parent.mkdir()
    there.symlink_to("nowhere") if is_link else there.write_text("mine")
    assert main(["configs", "--copy", "grafana", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"trioha: {there}: is there already, and nothing was copied; give another folder, or delete it\n"
    )
    assert list(there.parent.iterdir()) == [there]
    assert is_link or there.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--copy", "sync", "{}"], "there is no 'sync'; trioha configs lists the names"),
        (["--copy", "../configs", "{}"], "there is no '../configs'"),
        (["--copy", "", "{}"], "there is no ''"),
        (["--copy", "sync-master.conf", "{}/file/folder"], "cannot be written: Not a directory"),
        (["--copy", "sync-master.conf", "{}", "--list"], "--copy: is given beside --list; use one of them"),
    ],
)
def test_what_cannot_be_copied_is_one_line(arguments, reason, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["configs", *(argument.format(tmp_path) for argument in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
