"""What every process that tests start is given."""

from __future__ import annotations

import os
import shutil

DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
"""Before a command: its process does not outlive the test run, even one that is killed."""


def environment_of_ours() -> dict[str, str]:
    """The environment without a name server that the machine's user works with: tests name their own."""
    return {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
