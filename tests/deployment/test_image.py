"""What the image promises, seen in its own file system: see `tests/deployment/image.py`."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hatch_build import has_compiler
from tests.deployment.image import Image, build, why_not
from tests.node_process import load, verify
from tests.ports import free_port
from trioha import __version__

WITHIN_S = 300.0
"""For a command in the image."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    if reason := why_not():
        pytest.skip(f"no image can be built here: {reason}")
    return build(tmp_path_factory.mktemp("image") / "root")


class Container:
    """A node in the image, with a volume and settings of its own."""

    def __init__(self, image: Image, folder: Path) -> None:
        self.image = image
        self.port, self.http_port = free_port(), free_port()
        self.volume, self.settings = folder / "volume", folder / "settings"
        self.volume.mkdir()
        self.settings.mkdir()
        # The folders above it, of pytest, are root's alone; a mount has no such folders above.
        user, _, group = image.stage.one("USER").text.partition(":")
        os.chown(self.volume, int(user), int(group))
        (self.settings / "broker.conf").write_text(
            "brokerRole = ASYNC_MASTER\nbrokerName = image\nbrokerIP1 = 127.0.0.1\n"
            f"listenPort = {self.port}\ntrioha.bindAddress = 127.0.0.1\nmappedFileSizeCommitLog = 65536\n"
            "storePathRootDir = /var/lib/trioha/store\n"
        )
        self.settings.chmod(0o755)

    def command(self, *words: str) -> list[str]:
        return self.image.command(*words, volume=self.volume, settings=self.settings)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command beside the node's, to its end."""
        return subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    def health(self) -> subprocess.CompletedProcess[str]:
        """The image's own check, on this node's port."""
        return self.run(*(word.replace(" 9108,", f" {self.http_port},") for word in self.image.health_check))

    @contextmanager
    def running(self) -> Iterator[int]:
        """Runs the image's own command; gives the node's process id here. An engine's signal stops it."""
        words = [*self.image.entrypoint, *self.image.stage.one("CMD").json_words()]
        # The network is the machine's: its port may be taken.
        words += ["-p", f"trioha.metricsPort={self.http_port}"]
        with subprocess.Popen(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            output: list[str] = []
            lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
            assert process.stdout is not None
            reader = threading.Thread(target=_read, args=(process.stdout, lines))
            reader.start()
            try:
                while not output or not output[-1].startswith("ready "):
                    line = lines.get(timeout=WITHIN_S)
                    assert line is not None, "".join(output)
                    output.append(line)
                (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                yield int(child)
                os.kill(int(child), signal.Signals[self.image.stage.one("STOPSIGNAL").text])
                assert process.wait(WITHIN_S) == 0, output
            finally:
                process.kill()
                reader.join()


def _read(stream: Iterator[str], lines: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


@pytest.mark.nightly
@pytest.mark.process
def test_a_node_of_the_image_writes_to_its_volume_alone_and_has_no_privileges(image, tmp_path):
    container = Container(image, tmp_path)
    user = image.stage.one("USER").text.partition(":")[0]
    kernel = "compiled" if has_compiler() else "pure"
    assert container.run("trioha", "--version").stdout.startswith(f"{__version__} (kernel: {kernel}")
    # Not healthy before it is there.
    assert container.health().returncode == 1
    for _ in range(2):
        # The second one goes on with the volume of the first.
        with container.running() as number:
            status = dict(
                re.findall(r"^(\w+):\t(.*)$", Path(f"/proc/{number}/status").read_text(), re.MULTILINE)
            )
            assert set(status["Uid"].split()) == {user}
            assert (int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]) == (0, 0, "1")
            assert status["NSpid"].split()[1:] == ["1"]
            healthy = container.health()
            assert healthy.returncode == 0, healthy.stdout + healthy.stderr
            assert load(f"127.0.0.1:{container.port}", 300).statuses == {"PUT_OK": 300}
    assert container.health().returncode == 1
    (found,) = verify(container.volume / "store")["stores"]
    assert found["records"] == 600, found
    assert {path.stat().st_uid for path in container.volume.rglob("*")} == {int(user)}


@pytest.mark.nightly
def test_nothing_but_the_volume_of_the_image_can_be_written(image, tmp_path):
    container = Container(image, tmp_path)
    for folder in ("/", "/etc/trioha", "/opt/trioha/bin", "/tmp", "/usr"):
        tried = container.run("sh", "-c", f"touch {folder}/file")
        assert tried.returncode == 1
        assert "Read-only file system" in tried.stderr or "Permission denied" in tried.stderr
    assert container.run("touch", "/var/lib/trioha/file").returncode == 0
    assert (container.volume / "file").exists()


@pytest.mark.nightly
def test_the_image_has_the_commands_that_compose_files_use(image, tmp_path):
    container = Container(image, tmp_path)
    for command in ("namesrv", "monitor", "archive", "status", "produce"):
        assert container.run("trioha", command, "--help").stdout.startswith(f"Usage: trioha {command}")
    # The monitor comes as far as to want a terminal: Textual is there.
    assert "is not a terminal" in container.run("trioha", "monitor", "127.0.0.1:1").stderr
    (container.volume / "store/commitlog").mkdir(parents=True)
    assert container.run("python", "-c", "import obstore, trioha_monitor").returncode == 0
