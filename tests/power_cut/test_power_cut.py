"""Power cuts of nodes on real file systems: nothing acknowledged is missing, and what is missing is found.

`make power-cut` runs all scenarios.
"""

import json
import subprocess
import sys

import pytest

from tests.faults.planted import nothing_synced
from tests.power_cut import devices
from tests.power_cut.__main__ import main
from tests.power_cut.devices import why_not

COMMAND = (sys.executable, "-m", "tests.power_cut")
WITHIN_S = 240


def cut(*arguments):
    """Exit code of the command, and its rows by what was looked for."""
    done = subprocess.run(
        [*COMMAND, "--json", "--cuts", "1", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, {row["what"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_where_no_device_can_be_mounted_one_line_says_why(monkeypatch, capsys):
    monkeypatch.setattr(devices.os, "geteuid", lambda: 1000)
    assert main([]) == 0
    assert capsys.readouterr().out == "power cuts are skipped: only root may mount a loop device\n"


@pytest.mark.parametrize("arguments", [["--cuts", "0"], ["--scenario", "fire"], ["--file-system", "ntfs"]])
def test_arguments_that_cannot_be_used_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("python -m tests.power_cut: error: ")


@pytest.fixture
def _loop_devices():
    if reason := why_not():
        pytest.skip(reason)


@pytest.mark.full
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S)
@pytest.mark.usefixtures("_loop_devices")
def test_a_power_cut_takes_nothing_that_was_acknowledged():
    code, rows = cut("--scenario", "roll-over", "--file-system", "ext2")
    assert [row for row in rows.values() if row["missing"]] == []
    assert code == 0
    assert rows["SEND_OK"]["looked_for"] >= 30
    assert rows.keys() == {"SEND_OK", "queues and index", "consumerOffset.json", "metadata history"}
    assert all(row["looked_for"] for row in rows.values())


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S)
@pytest.mark.usefixtures("_loop_devices")
@pytest.mark.parametrize("scenario", ["put", "slave", "topics", "delay", "archive", "epochs", "clean-stop"])
def test_a_node_that_puts_less_on_disk_than_it_says_is_found(scenario):
    defect = f"{nothing_synced.plant.__module__}:{nothing_synced.plant.__name__}"
    code, rows = cut("--scenario", scenario, "--file-system", "ext4", "--defect", defect)
    assert code == 1
    assert [row for row in rows.values() if row["missing"]]
