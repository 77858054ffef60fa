"""The demo succeeds, reports failed checks, and leaves no process however it ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.interop.rocketmq import missing_tools
from tests.waiting import wait_until
from trioha.cli.demo_run import AFTER, BEFORE, CHECKS, DURING
from trioha.cli.rocketmq_jars import java_tool

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

MARK = "TRIOHA_TEST_MARK"


def marked(mark: str) -> list[str]:
    """Command lines of all running processes with this mark: those of one demo and their children."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile, or is not ours
            continue
    return found


class Demo:
    """A running `trioha demo` in a folder of its own, with its child processes."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.mark = uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.remarks: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trioha", "demo", *arguments],
            cwd=folder,
            env={**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, remark: str) -> None:
        """Read stderr until a line has this text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.remarks.append(line)
            if remark in line:
                return
        pytest.fail(f"{remark!r} was never said:\n{''.join(self.remarks)}")

    def end(self) -> str:
        """Wait for the end; the output."""
        out, err = self.process.communicate(timeout=200)
        self.remarks.append(err)
        return out


@pytest.fixture
def start(tmp_path):
    """Start demos; fails at the end if one of their processes still runs."""
    demos: list[Demo] = []

    def start_demo(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield start_demo
    for demo in demos:
        if demo.process.poll() is None:
            demo.process.kill()
        for stream in (demo.process.stdout, demo.process.stderr):
            stream.close()
        demo.process.wait(60)


@pytest.mark.full
@pytest.mark.spark
def test_the_demo_holds_and_leaves_nothing_but_its_report(start):
    demo = start("--count", "2000", "--json", "--report", "report.html")
    printed = demo.end()
    assert demo.process.returncode == 0, demo.remarks
    said = json.loads(printed)
    assert said["ok"]
    assert all(check["held"] for check in said["checks"])
    puts = {act: result["statuses"] for act, result in said["puts"].items()}
    assert puts[BEFORE] == {"PUT_OK": 500}
    assert puts[AFTER] == {"PUT_OK": 500}
    assert sum(puts[DURING].values()) == 1000
    assert set(puts[DURING]) - {"PUT_OK"} <= {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    assert set(puts[DURING]) != {"PUT_OK"}
    clients = said["clients"]
    assert clients["produced"] == clients["consumed"] == sum(clients["statuses"].values()) > 100
    assert (clients["lost"], clients["duplicated"], clients["outOfOrder"]) == (0, 0, 0)
    assert clients["name"] == ("trioha's own" if missing_tools() else "RocketMQ 5.5.0's own, in Java")
    assert len(said["checks"]) == CHECKS
    assert "<html" in (demo.folder / "report.html").read_text()
    assert said["folder"] is None
    assert list(demo.temporary.glob("trioha-demo-*")) == []
    assert marked(demo.mark) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("slave killed", signal.SIGHUP, marks=pytest.mark.full),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("master serves", signal.SIGINT),
                ("slave serves", signal.SIGTERM),
                ("PUT_OK", signal.SIGTERM),
            )
        ),
    ],
)
def test_an_interrupted_demo_leaves_no_process_and_no_folder(start, moment, number):
    demo = start("--count", "2000", "--clients", "trioha")
    demo.wait_for(moment)
    demo.process.send_signal(number)
    assert demo.end() == ""
    assert demo.process.returncode == 128 + number
    assert demo.remarks[-1].endswith(f"stopped by {number.name}; no process is left\n")
    assert marked(demo.mark) == []
    assert list(demo.temporary.glob("trioha-demo-*")) == []


@pytest.mark.spark
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.full)])
def test_a_demo_interrupted_during_the_replay_leaves_no_spark(start, number):
    demo = start("--count", "100", "--clients", "trioha")
    demo.wait_for("byte-identical")
    wait_until(lambda: any("java" in command for command in marked(demo.mark)), "a JVM")
    demo.process.send_signal(number)
    demo.end()
    wait_until(lambda: not marked(demo.mark), "the end of its processes", within_s=5)


@pytest.mark.full
@pytest.mark.parametrize("moment", [pytest.param("master serves", marks=pytest.mark.nightly), "slave killed"])
def test_sigkill_of_the_demo_ends_its_processes(start, moment):
    demo = start("--count", "2000", "--clients", "trioha")
    demo.wait_for(moment)
    demo.process.kill()
    wait_until(lambda: not marked(demo.mark), "the end of its processes", within_s=5)


@pytest.mark.full
@pytest.mark.interop
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL])
def test_a_demo_that_ends_early_leaves_no_client(start, number):
    if (missing := missing_tools()) is not None:
        pytest.skip(missing)
    demo = start("--count", "2000", "--clients", "java")
    demo.wait_for("producer and consumer run on")
    assert any("DemoClients" in command for command in marked(demo.mark))
    demo.process.send_signal(number)
    demo.end()
    wait_until(lambda: not marked(demo.mark), "the end of its processes", within_s=5)


def test_without_java_the_demo_is_one_line_before_anything_else(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environ = {**os.environ, "PATH": str(tmp_path), "TMPDIR": str(temporary)}
    environ.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-m", "trioha", "demo"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("trioha: ")
    assert "Java 17" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(temporary.iterdir()) == []


@pytest.mark.full
@pytest.mark.spark
def test_without_maven_java_clients_are_refused_in_one_line(tmp_path):
    for folder in ("tmp", "bin"):
        (tmp_path / folder).mkdir()
    for tool in ("java", "javac"):
        found = shutil.which(java_tool(tool))
        if found is None:
            pytest.skip(f"there is no {tool}")
        (tmp_path / "bin" / tool).symlink_to(Path(found).resolve())
    environ = {
        **os.environ,
        "PATH": str(tmp_path / "bin"),
        "TMPDIR": str(tmp_path / "tmp"),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    environ.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-m", "trioha", "demo", "--clients", "java"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "trioha: RocketMQ's clients need Maven and a JDK of 17 or newer, but there is no `mvn`\n"
    )
    assert list((tmp_path / "tmp").glob("trioha-demo-*")) == []


def test_invalid_input_is_one_line(tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    for arguments, line in (
        (["--count", "99"], "settings: --count: 99 is too few; at least 100"),
        (["--watch"], "settings: --watch: this is not a terminal; leave it out"),
        (["--report", "none/x.html"], f"settings: --report: there is no folder {tmp_path}/none"),
        (["--keep", "full"], "settings: --keep: full is not empty; name a new folder"),
        (["--keep", "full/file"], "settings: --keep: full/file: File exists; name a new folder"),
    ):
        assert refusal("demo", *arguments) == f"trioha: {line}\n"
