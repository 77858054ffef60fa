"""Programs of a RocketMQ distribution, of the jars from Maven Central, for pages that start them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.interop.java import LOGBACK
from tests.interop.java_process import java_command
from tests.interop.rocketmq import class_path, name_server_class_path, proxy_class_path
from tests.page_shell import program

_MAIN: Final[Mapping[str, tuple[str, Callable[[str], str]]]] = {
    "mqbroker": ("broker.BrokerStartup", class_path),
    "mqcontroller": ("controller.ControllerStartup", name_server_class_path),
    "mqproxy": ("proxy.ProxyStartup", proxy_class_path),
}


def rocketmq_program(home: Path, name: str, version: str) -> None:
    """`bin/NAME` of a distribution in `home`: as it is there, but for the JVM's flags.

    `bin/mqshutdown` ends what `mqbroker` of this folder started, and no other.
    """
    main_class, jars = _MAIN[name]
    logback = home / "conf" / "logback.xml"
    logback.parent.mkdir(parents=True, exist_ok=True)
    logback.write_text(LOGBACK)
    java = java_command(f"org.apache.rocketmq.{main_class}", jars(version), home=home, logback=logback)
    program(home / "bin" / name, f'echo $$ > {home}/pid\nexec {shlex.join(java)} "$@"')
    program(home / "bin" / "mqshutdown", f'test "$1" = broker\nkill "$(cat {home}/pid)"')
