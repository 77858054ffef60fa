"""Log lines on stderr, for people or for machines."""

from __future__ import annotations

import io
import logging
import sys
from typing import TextIO, cast

import structlog

from trioha.outside_text import escaped, escaped_lines


class LogStream:
    """A text stream for log lines that never raises: a full disk or a closed pipe costs lines, not the node.

    The next line that can be written says how many could not.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0
        """Lines since the last one that was written."""

    def write(self, text: str) -> None:
        """Write one line, its end included."""
        try:
            if self.lost:
                self._stream.write(f"{self.lost} log lines before this one could not be written\n")
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1
        else:
            self.lost = 0

    def flush(self) -> None:
        """Nothing is left to do: each line is written at once."""


def configure_logs(*, as_json: bool) -> None:
    """Write log lines of level INFO and above to stderr: coloured text, or one JSON object a line."""
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_json:
        # JSON in ASCII has no control characters.
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        processors += [
            _escape,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback),
        ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", LogStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def _escape(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Texts from outside for a terminal; what is not a text is shown by its `repr`, which escapes."""
    shown = {key: escaped(value) if isinstance(value, str) else value for key, value in event.items()}
    shown["event"] = escaped(str(event["event"]))
    return shown


def _write_traceback(stream: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    written = io.StringIO()
    structlog.dev.plain_traceback(written, exc_info)
    stream.write(escaped_lines(written.getvalue()))
