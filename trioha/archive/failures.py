"""What went wrong at the object storage, as an ArchiveError of one line.

obstore's exceptions have their kind by class only for a few reasons; everything else is a GenericError whose
text has, after one line, a dump of the error's sources: the status and the body of an answer, or how the
connection ended. The rules here read that text. An unknown one is passed on with its first line.
"""

from __future__ import annotations

import errno
import re
from typing import Final
from urllib.parse import urlsplit

from trioha.archive.errors import ArchiveError, MissingObjectError

VARIABLES: Final = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
"""What environment variables of a scheme begin with."""
_REASON_MAX: Final = 300
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3}) ?([A-Za-z -]*)")
_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r'<Message>([^<]{1,200})|"message": ?"([^"]{1,200})"')
_ENDED: Final = re.compile(
    "IncompleteMessage|IncompleteBody|UnexpectedEof|ConnectionReset|BrokenPipe|Interrupted"
)
_CONNECTION: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_SYSTEM_ERROR: Final = re.compile(r'code: (\d+),\s*kind: \w+,\s*message: "([^"]+)"')
_CAUSE: Final = re.compile(r'error: "([^"]+)"|(invalid peer certificate[^"\n]*|InvalidCertificate\(\s*\w+)')
_PREFIX: Final = re.compile(r"Generic (?:Config|GCS|HTTP|LocalFileSystem|MicrosoftAzure|S3) error: ")
_REPEATED: Final = re.compile(r"after [1-9]\d* retries")

_NO_BUCKET: Final = frozenset(("NoSuchBucket", "ContainerNotFound"))
_NO_UPLOAD: Final = frozenset(("NoSuchUpload",))
_DENIED_CODES: Final = frozenset(
    ("ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidAccessKeyId")
)
_DENIED: Final = (401, 403)
_TRANSIENT: Final = (408, 409, 425, 429)
_DENIED_ERRNO: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_METADATA_SERVICES: Final = ("169.254.169.254", "metadata.google.internal")
_CREDENTIALS: Final = "check the credentials and their permissions"


def was_repeated(error: ArchiveError) -> bool:
    """Whether obstore has repeated the request before it gave up."""
    return _REPEATED.search(str(error.__cause__)) is not None


def archive_error(error: Exception, *, url: str, key: str | None) -> ArchiveError | None:
    """What an exception that obstore has raised means; None for one that it does not raise."""
    from obstore.exceptions import (  # noqa: PLC0415 (a node without an archive needs no obstore)
        BaseError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    if not isinstance(error, BaseError | OSError):
        return None
    text = str(error)

    def failed(reason: str, *, hint: str | None = None, is_transient: bool = False) -> ArchiveError:
        return ArchiveError(reason, url=url, key=key, hint=hint, is_transient=is_transient)

    if any(service in text for service in _METADATA_SERVICES):
        return failed("there are no credentials: neither the environment nor this machine has any")
    if "BadScheme" in text:
        variable = VARIABLES.get(urlsplit(url).scheme, "AWS")
        return failed("the endpoint is an http:// URL", hint=f"{variable}_ALLOW_HTTP=true allows it")
    status = _STATUS.search(text)
    if status is not None:
        number, name = int(status[1]), status[2].strip()
        code, message = _CODE.search(text), _MESSAGE.search(text)
        said = message and (message[1] or message[2])
        codes = frozenset((code[1],)) if code else frozenset()
        reason = ": ".join(part for part in (f"{number} {name}".strip(), code and code[1], said) if part)
        if codes & _NO_BUCKET:
            return failed("there is no such bucket")
        if number in _DENIED or codes & _DENIED_CODES:
            return failed(f"access is denied: {reason}", hint=_CREDENTIALS)
        if codes & _NO_UPLOAD:
            # Of a request that was repeated after its answer was lost, or whose parts were cleared away.
            return failed("the parts of the object are not there any more", is_transient=True)
        if number == 404:
            return MissingObjectError("there is no such object", url=url, key=key)
        return failed(
            f"the server answers {reason}", is_transient=number in _TRANSIENT or 500 <= number != 501
        )
    if isinstance(error, FileNotFoundError):
        return MissingObjectError("there is no such object", url=url, key=key)
    system_error = _SYSTEM_ERROR.search(text)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError) or (
        system_error is not None and int(system_error[1]) in _DENIED_ERRNO
    ):
        return failed(f"access is denied: {_first_line(text, error)}", hint=_CREDENTIALS)
    connection = _CONNECTION.search(text)
    if connection is None:
        if system_error is not None:
            return failed(f"{_first_line(text, error)}: {system_error[2]}", is_transient=True)
        return failed(_first_line(text, error), is_transient=isinstance(error, TimeoutError))
    cause = _CAUSE.search(text)
    why = system_error[2] if system_error else (cause[1] or " ".join(cause[2].split())) if cause else ""
    if connection[1] == "Connect":
        what = "cannot connect"
    elif connection[1] == "Timeout":
        what = "no answer in time"
    elif _ENDED.search(text):
        what = "the connection ended before the answer"
    else:
        what = _first_line(text, error)
    return failed(f"{what}: {why}" if why else what, is_transient=True)


def _first_line(text: str, error: Exception) -> str:
    line = _PREFIX.sub("", text.strip().split("\n", 1)[0])
    return (line or type(error).__name__)[:_REASON_MAX]
