"""One JVM with a main class of RocketMQ: a broker, a controller, a name server."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from attrs import define, field

from tests.interop.java import LOGBACK, OPENED
from tests.interop.rocketmq import home_flags, java_tool
from tests.processes import DIE_WITH_PARENT, environment_of_ours

JVM_FLAGS = (
    "-Xms48m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xss512k",
    "-Xshare:auto",
    *OPENED,
)


def java_command(
    main_class: str, class_path: str, *, home: Path, logback: Path, flags: Sequence[str] = JVM_FLAGS
) -> list[str]:
    """Starts a main class of RocketMQ, which has its files in `home` and logs as `logback` says."""
    return [
        *DIE_WITH_PARENT, java_tool("java"), *flags, *home_flags(home),
        f"-Drmq.logback.configurationFile={logback}", "-Drocketmq.client.logUseSlf4j=true",
        "-cp", class_path, main_class,
    ]  # fmt: skip


@define(eq=False, slots=False)
class JavaProcess:
    """One JVM with a main class of RocketMQ."""

    name: str
    folder: Path
    class_path: str
    main_class: str
    settings: dict[str, object]
    log_level: str = "WARN"
    flags: Sequence[str] = JVM_FLAGS
    """Of the JVM."""
    arguments: Sequence[str] | None = None
    """Of the main class; None for `-c` and a file of the settings."""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it, or start it again on its files."""
        assert self.process is None
        home = self.folder / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        config, logback = self.folder / f"{self.name}.conf", self.folder / "logback.xml"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        # A name server of 4.9.7 does not start without its own.
        for path in (logback, home / "conf" / "logback_namesrv.xml"):
            path.write_text(LOGBACK.replace("WARN", self.log_level))
        with self.log_path.open("ab") as log:
            command = java_command(
                self.main_class, self.class_path, home=home, logback=logback, flags=self.flags
            )
            self.process = subprocess.Popen(
                [*command, *(("-c", str(config)) if self.arguments is None else self.arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment_of_ours(),
            )

    @property
    def log_path(self) -> Path:
        """Of what it writes to both its streams."""
        return self.folder / f"{self.name}.log"

    def log(self) -> str:
        """The end of its log."""
        return f"--- {self.name}\n" + self.log_path.read_text(errors="replace")[-4000:]

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self.process is not None, f"{self.name} does not run"
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A clean stop."""
        self._end(signal.SIGTERM)

    def hang(self) -> None:
        """Stop it where it stands: it keeps its connections and says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, by: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(by)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(60)
        self.process = None
