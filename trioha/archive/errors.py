"""What can be wrong with an archive."""

from __future__ import annotations

from trioha.errors import TriohaError


class ArchiveError(TriohaError):
    """An archive that cannot be used as it is: `url`, the `key` of the object concerned, and a `hint`.

    `is_transient`: whether the same request may succeed later (network, server, throttling).
    """

    def __init__(
        self,
        reason: str,
        *,
        url: str,
        key: str | None = None,
        hint: str | None = None,
        is_transient: bool = False,
    ) -> None:
        self.reason = reason
        self.url = url
        self.key = key
        self.hint = hint
        self.is_transient = is_transient
        where = url if key is None else f"{url.rstrip('/')}/{key}"
        super().__init__(f"{where}: {reason}" + (f"; {hint}" if hint else ""))


class MissingObjectError(ArchiveError):
    """There is no object of this key."""


class NoArchiveError(ArchiveError):
    """There is nothing at the URL that an archiver has written."""

    def __init__(self, url: str) -> None:
        super().__init__("there is no archive", url=url, hint="trioha archive STORE --to URL makes one")


class DamagedSourceError(ArchiveError):
    """The store to be archived has no valid record at `offset`, and its log goes on after it."""

    def __init__(self, reason: str, *, url: str, offset: int) -> None:
        self.offset = offset
        super().__init__(
            f"no valid record at offset {offset}: {reason}",
            url=url,
            hint="everything before it is archived; trioha verify STORE checks the store",
        )


class ChangedSourceError(ArchiveError):
    """Bytes of the store have changed since they were checked, or archived."""


class FencedError(ArchiveError):
    """Another writer archives to this URL: this one has to end."""
