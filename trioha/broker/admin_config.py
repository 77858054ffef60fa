"""GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG: a running broker's configuration.

See docs/protocol/remoting.md#administration.

A change is made as a whole or not at all: it is checked, written to the broker.conf, and then applied. The
file keeps its comments, its order and keys of others; what it was becomes its `.bak`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog
import trio
from attrs import frozen

from trioha.broker.admin_answers import ANSWER_BYTES_MAX
from trioha.config.broker import BrokerConfig
from trioha.config.properties_file import PropertiesDocument
from trioha.config.update import ConfigChange, ConfigFile, RefusedChange, config_text, plan_change
from trioha.errors import ConfigError
from trioha.metadata.data_version import DataVersion
from trioha.metadata.table import wall_clock_ms
from trioha.net.threads import run_in_thread
from trioha.remoting.codes import ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.serving import Peer
from trioha.store.atomic_file import replace_file

log = structlog.get_logger(__name__)

BODY_BYTES_MAX: Final = 64 * 1024
"""Of the settings in a request."""

Apply = Callable[[BrokerConfig], None]
"""Lets the running broker use the settings of a configuration."""


@frozen
class RunTimeSettings:
    """Settings that can be changed while the broker runs."""

    attributes: frozenset[str]
    """Of `BrokerConfig`."""
    apply: Apply
    """Called once when any of them has changed."""


def at_run_time(*attributes: str, apply: Apply) -> RunTimeSettings:
    """Changes of these settings take effect by `apply`."""
    return RunTimeSettings(frozenset(attributes), apply)


class AdminConfig:
    """Handles requests for the configuration."""

    def __init__(
        self, config: BrokerConfig, file: ConfigFile | None, settings: Sequence[RunTimeSettings] = ()
    ) -> None:
        """`file` is None for a broker without a broker.conf: nothing can be changed then. Only `settings` can
        be changed."""
        self.config = config
        """The settings that the broker uses now."""
        self._file = file
        self._settings = tuple(settings)
        self._version = DataVersion(timestamp_ms=wall_clock_ms())
        self._lock = trio.Lock()

    def read(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_BROKER_CONFIG: all settings, as a properties text, and how often they were changed."""
        version = self._version.to_json()
        if request.version >= Version.V5_0_0:
            version["stateVersion"] = 0
        text = json.dumps(dict(sorted(version.items())), separators=(",", ":"))
        body = config_text(self.config)
        assert len(body) <= ANSWER_BYTES_MAX, "settings come from a file of at most 1 MiB"
        return response_to(request, ResponseCode.SUCCESS, ext_fields={"version": text}, body=body)

    async def update(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        """UPDATE_BROKER_CONFIG: set keys in the running broker and in its broker.conf.

        Raises BadRequestError, which names the key: for one that is not a key, needs a restart or cannot have
        the value. Nothing is changed then. A cancellation leaves either all changes made or none.
        """
        wanted = _settings_of(request)
        file = self._file
        if file is None:
            raise BadRequestError(
                "this broker was started without a broker.conf that a change could be written to",
                code=ResponseCode.NO_PERMISSION,
            )
        changeable = frozenset().union(*(settings.attributes for settings in self._settings))
        async with self._lock:
            try:
                change = await run_in_thread(
                    partial(plan_change, file, self.config, wanted, at_run_time=changeable)
                )
                if change.attributes:
                    with trio.CancelScope(shield=True):
                        await run_in_thread(partial(_write, file, change))
                        self._apply(change)
            except RefusedChange as refused:
                raise BadRequestError(str(refused), code=ResponseCode.NO_PERMISSION) from None
            except ConfigError as error:
                # Several problems have a line each; a remark is one line.
                raise BadRequestError("; ".join(str(error).splitlines())) from None
            except OSError as error:
                raise BadRequestError(f"{file.path} cannot be written: {error.strerror or error}") from error
        log.info(
            "configuration changed", by=str(peer), keys=sorted(wanted), changed=sorted(change.attributes)
        )
        return response_to(request, ResponseCode.SUCCESS)

    def _apply(self, change: ConfigChange) -> None:
        self.config = change.config
        self._version = self._version.following(wall_clock_ms())
        for settings in self._settings:
            if settings.attributes & change.attributes:
                settings.apply(change.config)


def _settings_of(request: RemotingCommand) -> dict[str, str]:
    """The keys and values in a request's body. Raises BadRequestError."""
    if len(request.body) > BODY_BYTES_MAX:
        raise BadRequestError(f"a body of {len(request.body)} bytes; at most {BODY_BYTES_MAX} are accepted")
    entries = PropertiesDocument.parse(bytes(request.body)).entries
    for entry in entries:
        if entry.problem is not None:
            raise BadRequestError(f"{entry.key[:100]}: {entry.problem}")
    if not entries:
        raise BadRequestError("the request has no settings")
    return {entry.key: entry.value for entry in entries}


def _write(file: ConfigFile, change: ConfigChange) -> None:
    """Replace the broker.conf. Blocks. Raises OSError; the file is as it was then."""
    # A link stays a link: what it points to is replaced.
    path = file.path.resolve()
    replace_file(path, change.file, mode=path.stat().st_mode & 0o7777)
