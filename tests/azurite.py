"""A real Azure Blob server over HTTP: Azurite, Microsoft's own emulator, of a fixed version from npm.

It is installed once per machine, beside RocketMQ's jars in the cache folder.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fcntl import LOCK_EX, flock
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT
from trioha.cli.rocketmq_jars import cache_folder

VERSION: Final = "3.35.0"
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Every Azurite has this account and this key: they are documented, and no secret."""
CONTAINER: Final = "backup"
INSTALL_WITHIN_S: Final = 600.0
END_WITHIN_S: Final = 60.0
_API: Final = "2021-08-06"


def missing_tools() -> str | None:
    """What this machine lacks to run Azurite, as one line; None if it has everything."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            return f"Azurite needs Node.js and npm: there is no `{tool}`"
    return None


class NotInstalledError(Exception):
    """npm could not fetch Azurite: the text is what it said."""


def installed() -> Path:
    """The program; npm fetches it the first time. Raises NotInstalledError."""
    folder = cache_folder() / f"azurite-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    stamp = folder / "installed"
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not stamp.exists():
            try:
                subprocess.run(
                    [
                        *("npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund"),
                        *("--ignore-scripts", f"azurite@{VERSION}"),
                    ],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=INSTALL_WITHIN_S,
                    check=True,
                )
            except subprocess.CalledProcessError as error:
                raise NotInstalledError(error.stderr.strip()[-300:]) from error
            except subprocess.TimeoutExpired as error:
                raise NotInstalledError(f"npm took more than {INSTALL_WITHIN_S:.0f} s") from error
            stamp.touch()
    return program


@contextmanager
def azurite(program: Path, folder: Path) -> Iterator[dict[str, str]]:
    """A server with an empty container for as long as the block runs; the environment that leads to it."""
    port = free_port()
    log_path = folder / "azurite.log"
    # A file: it writes a line for each request, and a pipe that nobody reads stops it after some 500.
    with log_path.open("w") as log:
        process = subprocess.Popen(
            [
                *DIE_WITH_PARENT,
                *(str(program), "--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"),
                *("--blobHost", "127.0.0.1", "--blobPort", str(port)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        while "successfully listens" not in log_path.read_text(errors="replace"):
            assert process.poll() is None, f"Azurite ended: {log_path.read_text(errors='replace')}"
            time.sleep(0.05)
        _make_container(port)
        yield {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
            "AZURE_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }
    finally:
        process.terminate()
        try:
            process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _make_container(port: int) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    path = f"/{ACCOUNT}/{CONTAINER}"
    # Method, eleven headers that are not sent, then those of the service, and what is asked for.
    text = "\n".join(
        (
            "PUT",
            *[""] * 11,
            f"x-ms-date:{date}",
            f"x-ms-version:{_API}",
            f"/{ACCOUNT}{path}",
            "restype:container",
        )
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    connection = HTTPConnection("127.0.0.1", port, timeout=END_WITHIN_S)
    try:
        connection.request(
            "PUT",
            f"{path}?restype=container",
            headers={
                "x-ms-date": date,
                "x-ms-version": _API,
                "Authorization": f"SharedKey {ACCOUNT}:{signature}",
                "Content-Length": "0",
            },
        )
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 201, said
    finally:
        connection.close()
