"""Steps of work on a store that may run in a worker thread."""

from __future__ import annotations

from collections.abc import Callable


class Step:
    """A blocking call whose exception is kept, for the iterator that has yielded it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.error: Exception | None = None

    def __call__(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - raised by the iterator
            self.error = error


def reason_of(error: Exception) -> str:
    """What has failed, in words: of an error of the system its text, else the exception's name, too."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return ": ".join(filter(None, (type(error).__name__, str(error))))
