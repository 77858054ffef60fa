"""Parsers of settings: text to value, or `InvalidValue` with the reason.

RocketMQ gives each value to the setter of its Java type (`Integer.parseInt`, `Long.parseLong`,
`Enum.valueOf`) and silently keeps the default where that fails, so that a typing error starts a broker with
other settings than its file has. These parsers refuse what Java cannot parse and accept what Java parses,
since a file that starts a RocketMQ broker must start this one: a number may have a plus sign, which
`trioha.numbers` refuses from peers. Blanks around a value are dropped, as RocketMQ 5 does; RocketMQ 4 keeps
them and therefore ignores a number with a blank after it.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from enum import StrEnum
from os import environ
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from attrs import field, frozen

from trioha.host_port import HINT, split_host_port
from trioha.numbers import I32, I64, PORT, Range, parse_int

INT_MAX: Final = I32.high
"""The largest Java `int`."""
LONG_MAX: Final = I64.high
"""The largest Java `long`."""
PORT_MAX: Final = PORT.high
ARCHIVE_SCHEMES: Final = ("s3", "gs", "az", "file")
"""Kinds of object storages."""
_HOURS: Final = Range(0, 23)

E = TypeVar("E", bound=StrEnum)

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_HOME: Final = re.compile(r"(?:~|\$HOME|\$\{HOME\})(?=/|\Z)")


class InvalidValue(Exception):  # noqa: N818 - a parser's answer, caught within this package
    """A value that does not fit its key, with the `reason` and a `hint` on what would fit."""

    def __init__(self, reason: str, *, hint: str | None = None) -> None:
        self.reason = reason
        self.hint = hint
        super().__init__(reason)


def integer(*, low: int, high: int = INT_MAX) -> Callable[[str], int]:
    """A parser of decimal integers from `low` to `high`, with an optional sign, as in Java."""

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise InvalidValue(f"{_shown(text)} is not a whole number", hint=f"give {low} to {high}")
        try:
            return parse_int(text.removeprefix("+"), Range(low, high))
        except ValueError:
            raise InvalidValue(f"{text} is out of range", hint=f"give {low} to {high}") from None

    return parse


def optional_integer(*, low: int, high: int = INT_MAX) -> Callable[[str], int | None]:
    """A parser of decimal integers as `integer`, or None for an empty value."""
    parse_integer = integer(low=low, high=high)
    return lambda text: parse_integer(text) if text else None


def one_of(kind: type[E], *, hint: str = "give one of {}") -> Callable[[str], E]:
    """A parser of the exact names of `kind`, as Java's `valueOf`; they are inserted into `hint`."""

    def parse(text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            names = ", ".join(member.value for member in kind)
            raise InvalidValue(f"{_shown(text)} is not one of its values", hint=hint.format(names)) from None

    return parse


def boolean(text: str) -> bool:
    """`true` or `false`, in any case as in Java. Java reads every other word as false; here it is refused."""
    match text.lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise InvalidValue(f"{_shown(text)} is neither true nor false", hint="give true or false")


def optional_one_of_or_integer(kind: type[E], *, low: int, high: int) -> Callable[[str], E | int | None]:
    """A parser of the names of `kind` or integers from `low` to `high`; None for an empty value."""
    parse_integer = integer(low=low, high=high)
    parse_name = one_of(kind, hint=f"give {{}}, or a number from {low}")

    def parse(text: str) -> E | int | None:
        if not text:
            return None
        return parse_integer(text) if _INTEGER.fullmatch(text) else parse_name(text)

    return parse


def name(text: str) -> str:
    """A name for file names, addresses and log lines: not empty, printable, without blanks."""
    if not text:
        raise InvalidValue("is empty", hint="give a name or leave the key out")
    if not text.isprintable() or any(c.isspace() for c in text):
        raise InvalidValue(f"{_shown(text)} has blanks or control characters", hint="give a plain name")
    return text


def ip_address(text: str) -> str:
    """An IPv4 or IPv6 address; not a host name, since records hold it as bytes."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise InvalidValue(
            f"{_shown(text)} is not an IP address", hint="give an IPv4 or IPv6 address"
        ) from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise InvalidValue(
            f"{_shown(text)} has a zone, which a record cannot hold", hint="leave out the %zone"
        )
    return str(address)


def hours(text: str) -> frozenset[int]:
    """Hours of the day, 0 to 23, separated by `;`; none for an empty value."""
    found = set()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        try:
            found.add(parse_int(part, _HOURS))
        except ValueError:
            raise InvalidValue(
                f"{_shown(part)} is no hour of the day", hint="give hours as in 04 or 04;16"
            ) from None
    return frozenset(found)


def delay_levels(text: str) -> str:
    """Delays separated by blanks: numbers with a unit of s, m, h or d."""
    for part in text.split():
        if re.fullmatch(r"[0-9]{1,18}[smhd]", part) is None:
            raise InvalidValue(f"{_shown(part)} is no delay", hint="levels look like 30s, 5m, 2h or 1d")
    return text


def networks(text: str) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """IP addresses and networks in CIDR form, separated by `,`; none for an empty value."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError as error:
            raise InvalidValue(
                f"{_shown(part)} is no network: {error}", hint="give 10.0.0.7 or 10.0.0.0/24"
            ) from None
    return tuple(found)


def directory(text: str) -> Path:
    """A directory, made absolute against the working directory.

    A `~`, `$HOME` or `${HOME}` at the start is the home directory; RocketMQ would create a directory of that
    name. Other variables are not replaced.
    """
    if not text:
        raise InvalidValue("is empty", hint="give a directory or leave the key out")
    if "\0" in text:
        raise InvalidValue("has a NUL character", hint="give a plain path")
    home = environ.get("HOME") or str(Path.home())
    return Path(_HOME.sub(lambda _: home, text, count=1) if _HOME.match(text) else text).absolute()


def single_directory(text: str) -> Path:
    """A `directory`; RocketMQ's list of several, separated by `,`, is refused."""
    if "," in text:
        raise InvalidValue("names several directories", hint="trioha keeps one commit log in one directory")
    return directory(text)


def optional_directory(text: str) -> Path | None:
    """A `directory`, or None for an empty value."""
    return directory(text) if text else None


def optional_text(text: str) -> str | None:
    """Any text, or None for an empty one."""
    return text or None


def optional_archive_url(text: str) -> str | None:
    """URL of an archive, or None for an empty value. It is shown to all who ask: it has no credentials."""
    if not text:
        return None
    try:
        parts = urlsplit(name(text))
        has_credentials = parts.username is not None or bool(parts.query)
    except ValueError:
        raise InvalidValue("is not a URL", hint="give s3://bucket/folder or file:///folder") from None
    if has_credentials or parts.fragment:
        raise InvalidValue(
            "has more than a bucket and a folder",
            hint="give credentials by the environment (AWS_ACCESS_KEY_ID, ...)",
        )
    if parts.scheme not in ARCHIVE_SCHEMES:
        raise InvalidValue(
            f"{_shown(text)} is not a URL of an object storage", hint="give s3://, gs://, az:// or file:///"
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise InvalidValue(f"{_shown(text)} is not an absolute folder", hint="give file:///folder")
    if parts.scheme != "file" and not parts.netloc:
        raise InvalidValue(f"{_shown(text)} names no bucket", hint=f"give {parts.scheme}://bucket/folder")
    return text


def optional_duration(text: str) -> str | None:
    """A duration as in 30d, with a unit of s, m, h, d or w and above 0, or None for an empty value."""
    if text and duration_ms(text) == 0:
        raise InvalidValue(f"{_shown(text)} is no time at all", hint="give a duration as in 30d or 12h")
    return text or None


def duration_ms(text: str) -> int:
    """Milliseconds of a duration as in 30d. Raises `InvalidValue`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidValue(f"{_shown(text)} is no duration", hint="give a duration as in 30d or 12h")
    return int(match[1]) * _UNIT_MS[match[2]]


@frozen
class Account:
    """A name and its secret."""

    name: str
    secret: str = field(repr=False)


def optional_account(name_key: str, secret_key: str) -> Callable[[str], Account | None]:
    """A parser of a JSON object with these two members, or None for an empty value. Errors show no value."""

    def parse(text: str) -> Account | None:
        if not text:
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        members = value if isinstance(value, dict) else {}
        name, secret = members.get(name_key), members.get(secret_key)
        if not (isinstance(name, str) and name.strip() and isinstance(secret, str) and secret.strip()):
            raise InvalidValue(
                f"is not a JSON object with {name_key} and {secret_key}",
                hint=f'give {{"{name_key}":"...","{secret_key}":"..."}}',
            )
        return Account(name, secret)

    return parse


def java_class(*known: str) -> Callable[[str], str]:
    """A parser of names of RocketMQ's own classes; an operator's class cannot be run here."""

    def parse(text: str) -> str:
        if text not in known:
            raise InvalidValue(
                f"{_shown(text)} is a class that trioha does not have", hint=f"give {' or '.join(known)}"
            )
        return text

    return parse


def optional_java_class(*known: str) -> Callable[[str], str | None]:
    """A parser as `java_class`, or None for an empty value."""
    parse = java_class(*known)
    return lambda text: parse(text) if text else None


def request_codes(text: str) -> tuple[int, ...]:
    """Request codes split by `,`; none for an empty value."""
    parse = integer(low=0)
    return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",") if part.strip()))


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, IPv6 in brackets. Raises `InvalidValue`."""
    try:
        return split_host_port(text)
    except ValueError as refused:
        raise InvalidValue(str(refused), hint=HINT) from None


def optional_address(text: str) -> str | None:
    """`host:port`, checked and unchanged, or None for an empty value."""
    if not text:
        return None
    split_address(text)
    return text


def addresses(text: str) -> tuple[str, ...]:
    """Addresses `host:port`, split by `;`; none for an empty value."""
    found = dict.fromkeys(filter(None, (part.strip() for part in text.split(";"))))
    for part in found:
        split_address(part)
    return tuple(found)


def _shown(text: str) -> str:
    """The value for an error message: quoted, control characters escaped, cut to fit a line."""
    return repr(text if len(text) <= 60 else text[:57] + "...") if text else "an empty value"
