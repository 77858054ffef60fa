"""The commands of docs/start.md and of the how-to pages that go on after it, as they stand there.

The first block of a page names what an installation has. The test replaces its values and nothing else. Pages
that start RocketMQ's programs: `tests/interop/test_how_to.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.page_shell import Shell, blocks_of, pair_of_start, with_values
from tests.ports import free_port

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@pytest.mark.full
def test_the_page_starts_a_pair_and_the_next_ones_back_it_up_use_it_and_watch_it(tmp_path: Path) -> None:
    with pair_of_start(tmp_path) as (run, (messages, kill, watch, compare)):
        said = run.run(messages)
        assert "PUT_OK: 1,000" in said
        assert len(re.findall(r"^[0-3] \d+ \d+$", said, re.MULTILINE)) == 4
        assert "PUT_OK" not in {
            json.loads(line)["status"] for line in run.run(kill).splitlines() if line.startswith("{")
        }
        run.run_on_terminal(watch, (b"broker-a", b"q"))
        assert "equal from offset 0" in run.run(compare)
        back_up_and_restore(run, tmp_path)
        send_and_receive(run)
        watch_it(run, tmp_path)


def back_up_and_restore(run: Shell, folder: Path) -> None:
    names, back_up, restore = blocks_of("how-to/backup.md")
    values = {
        "STORE": folder / "pair/master",
        "ARCHIVE": f"file://{folder}/archive",
        "RESTORED": folder / "restored",
    }
    run.name(with_values(names.replace("$HOME", "/srv"), values))
    assert "generation" in run.run(back_up)
    run.run(restore)
    assert {path.name for path in (folder / "restored").iterdir()} >= {"commitlog", "config"}


def send_and_receive(run: Shell) -> None:
    start, send, receive = blocks_of("how-to/clients.md")
    run.run(start)
    assert len(re.findall(r"^PUT_OK [0-3] \d+$", run.run(send), re.MULTILINE)) == 10
    said = run.run(receive)
    assert re.findall(r"^invoice (\d+)$", said, re.MULTILINE) == [str(number) for number in range(10)]
    assert "billing" in said


def watch_it(run: Shell, folder: Path) -> None:
    names, start, live, with_file, record, replay, scripts, probes = blocks_of("how-to/monitor.md")
    recordings = folder / "recordings"
    run.name(
        with_values(
            names.replace("$HOME", "/srv"),
            {"METRICS_PORT": free_port(), "RECORDINGS": recordings},
        )
    )
    assert start == blocks_of("how-to/clients.md")[0]  # the pair runs
    run.run_on_terminal(live, (b"broker-a", b"q"))
    run.run_on_terminal(with_file, (b"broker-a", b"q"))
    run.run_on_terminal(record, (b"broker-a", b"r"), (b"Recording", b"r"), (b"Recorded", b"q"))
    assert len(list(recordings.glob("*-monitor.jsonl.gz"))) == 1
    run.run_on_terminal(replay, (b"broker-a", b"q"))
    assert "no findings" in run.run(scripts)
    assert "rocketmq_" in run.run(probes)


@pytest.mark.nightly
@pytest.mark.spark
def test_the_page_replays_and_asks_what_a_pair_recorded(tmp_path: Path) -> None:
    with pair_of_start(tmp_path) as (run, (*_, compare)):
        stop = compare.split("trioha verify")[0]
        run.run(stop)
        record, replay, ask = blocks_of("how-to/spark.md")
        run.run(record)
        run.run(replay)
        assert (tmp_path / "pair/replay.html").exists()
        said = run.run(ask)
        assert re.search(r"\| *Orders\| *1003\|", said)
        assert re.search(r"\| *PUT_OK\| *1000\|", said)
