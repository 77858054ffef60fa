"""`/livez` and `/readyz`: answers for Kubernetes, load balancers and operators.

Both are 200 if all checks pass, else 503, as Kubernetes' own servers answer: a line with `?verbose` for each
check (`[+]disk ok`, `[-]disk failed: ...`), and each reason without it if a check fails. `?exclude=NAME`
leaves a check out, and may be given several times.

`/livez` has no checks: it is answered by the thread in which the node works, so an answer says that it does.
What a restart does not mend (a full disk, a master that is gone) is `/readyz`'s alone.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

from trioha.broker.health import Check, Health
from trioha.metrics.http_get import TEXT, Page, Pages, Query

LIVE: Final = "/livez"
READY: Final = "/readyz"
PARAMETERS_MAX: Final = 32
"""Parameters of a query that are read; one with more is answered 400."""


def probes(health: Health) -> Pages:
    """The pages of a node's probes."""
    return {LIVE: _live, READY: partial(_ready, health)}


def _live(query: Query) -> Page:
    return _page("livez", (Check("loop"),), query)


def _ready(health: Health, query: Query) -> Page:
    return _page("readyz", health.checks(), query)


def _page(name: str, checks: Collection[Check], query: Query) -> Page:
    try:
        parameters = parse_qs(query.text, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        return Page(TEXT, b"too many parameters\n", HTTPStatus.BAD_REQUEST)
    excluded = parameters.get("exclude", [])
    failed = any(check.failure for check in checks if check.name not in excluded)
    lines = [
        _line(check, is_excluded=check.name in excluded)
        for check in checks
        if "verbose" in parameters or (check.failure and check.name not in excluded)
    ]
    if "verbose" in parameters or failed:
        lines.append(f"{name} check {'failed' if failed else 'passed'}")
    body = "\n".join(lines or ["ok"]) + "\n"
    status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
    return Page(TEXT, body.encode("utf-8", "backslashreplace"), status)


def _line(check: Check, *, is_excluded: bool) -> str:
    if is_excluded:
        return f"[+]{check.name} excluded"
    return f"[-]{check.name} failed: {check.failure}" if check.failure else f"[+]{check.name} ok"
