"""Expected errors. Each says what is wrong, where, and what to do next."""

from __future__ import annotations

from pathlib import Path


class TriohaError(Exception):
    """Base of every error that trioha raises on purpose; `str()` is one clear line for people."""


class ConfigError(TriohaError):
    """A setting that cannot be used.

    `file` and `line` are its place (None for a setting of the command line), `key` its name, `reason` what is
    wrong with it and `hint` what to write instead.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        key: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.reason = reason
        self.file = None if file is None else str(file)
        self.line = line
        self.key = key
        self.hint = hint
        where = self.file or "settings"
        if line is not None:
            where += f":{line}"
        what = f"{key}: {reason}" if key else reason
        super().__init__(f"{where}: {what}" + (f"; {hint}" if hint else ""))


class StoreError(TriohaError):
    """A store that cannot be used as it is: `path`, the physical `offset` if one is known, and a `hint`."""

    def __init__(
        self, reason: str, *, path: str | Path, offset: int | None = None, hint: str | None = None
    ) -> None:
        self.reason = reason
        self.path = str(path)
        self.offset = offset
        self.hint = hint
        where = self.path if offset is None else f"{self.path} at offset {offset}"
        super().__init__(f"{where}: {reason}" + (f"; {hint}" if hint else ""))


class RemoteProtocolError(TriohaError):
    """The peer broke the protocol: the connection is closed, the peer gets nothing, the event is counted."""


class LocalProtocolError(TriohaError):
    """Our own side asked for something that the protocol cannot say: a bug or a caller's mistake."""


class PeerError(TriohaError):
    """A peer that could not be reached, did not answer in time, or answered with an error code.

    `address` is `host:port`; `code` is RocketMQ's response code when the peer did answer.
    """

    def __init__(self, reason: str, *, address: str, code: int | None = None) -> None:
        self.reason = reason
        self.address = address
        self.code = code
        super().__init__(f"{address}: {reason}")


def leaves_of(error: BaseException) -> list[BaseException]:
    """The exceptions in a group and in its groups; `error` itself if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves_of(inner)]
    return [error]
