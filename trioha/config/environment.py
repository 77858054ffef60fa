"""Settings from the environment: a variable for each key.

The variable of a key is `TRIOHA_` and the key's words in capitals: `TRIOHA_LISTEN_PORT` for listenPort,
`TRIOHA_METRICS_PORT` for trioha.metricsPort, `TRIOHA_TLS_SERVER_CERT_PATH` for tls.server.certPath. An empty
variable is none. Variables replace what the file says, and `-p` replaces both.

A variable that looks like a key's and is none is refused: a node that starts with other settings than its
operator wrote may lose messages silently. One that resembles no key is somebody else's, and a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trioha.config.broker import SETTINGS, find_setting

PREFIX: Final = "TRIOHA_"
OWN_PREFIX: Final = "trioha."
NO_SETTINGS: Final = frozenset(("TRIOHA_PURE",))
"""Variables of trioha that are no settings."""
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[.]")
_OF_KUBERNETES: Final = re.compile(
    r"TRIOHA(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables with which Kubernetes tells of services whose names begin with trioha (enableServiceLinks)."""
_CUTOFF: Final = 0.85


def variable_of(key: str) -> str:
    """The variable of a key."""
    return PREFIX + _WORDS.sub("_", key.removeprefix(OWN_PREFIX)).upper()


KEYS: Final[Mapping[str, str]] = {variable_of(setting.key): setting.key for setting in SETTINGS.values()}
"""By variable."""


def settings_in(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of keys that `environment` has, and their values."""
    return {name: environment[name] for name in KEYS if environment.get(name)}


def variable_given(key: str, environment: Mapping[str, str]) -> str | None:
    """The variable that gives a known key its value, or an alias of it; None if there is none."""
    known = find_setting(key)
    assert known is not None, key
    name = variable_of(known[1].key)
    return name if environment.get(name) else None


def unknown_in(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables that begin as those of keys do and are none, with the one that was probably meant."""
    unknown = [
        name
        for name in environment
        if name.startswith(PREFIX)
        and name not in KEYS
        and name not in NO_SETTINGS
        and _OF_KUBERNETES.fullmatch(name) is None
    ]
    return {name: _similar(name) for name in sorted(unknown)}


def _similar(name: str) -> str | None:
    # Only where a variable is unknown: no start waits for it.
    from difflib import get_close_matches  # noqa: PLC0415

    known = [each.removeprefix(PREFIX) for each in KEYS]
    found = get_close_matches(name.removeprefix(PREFIX).upper(), known, n=1, cutoff=_CUTOFF)
    return PREFIX + found[0] if found else None
