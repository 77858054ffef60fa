"""Metrics as text: OpenMetrics for those who accept it, else Prometheus' older text format.

An answer is kept for half a second, so that peers that ask as often as they can cost the node little: what it
computes does not depend on who asks. Prometheus asks every few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import trio
from attrs import frozen
from prometheus_client import CollectorRegistry
from prometheus_client import exposition as plain
from prometheus_client.openmetrics import exposition as openmetrics

from trioha.metrics.http_get import Page, Query

ANSWER_AGE_S_MAX: Final = 0.5
OPENMETRICS: Final = "application/openmetrics-text"
_ESCAPING: Final = openmetrics.ALLOWUTF8
"""Changes no byte: all names are letters, digits and underscores. The default looks at each letter of every
name and so takes half as long again."""


@frozen
class _Format:
    content_type: str
    generate: Callable[..., bytes]


_PLAIN: Final = _Format(plain.CONTENT_TYPE_PLAIN_0_0_4, plain.generate_latest)
_OPENMETRICS: Final = _Format(openmetrics.CONTENT_TYPE_LATEST, openmetrics.generate_latest)


@frozen
class _Kept:
    """An answer and the end of its time."""

    page: Page
    until_s: float


class Exposition:
    """Makes the page of a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._kept = {one: _Kept(Page(one.content_type, b""), -math.inf) for one in (_PLAIN, _OPENMETRICS)}

    def page(self, query: Query) -> Page:
        """The metrics as of now, at most half a second old."""
        wanted = _OPENMETRICS if _accepts_openmetrics(query.accept) else _PLAIN
        now_s = trio.current_time()
        if now_s >= self._kept[wanted].until_s:
            body = wanted.generate(self._registry, escaping=_ESCAPING)
            self._kept[wanted] = _Kept(Page(wanted.content_type, body), now_s + ANSWER_AGE_S_MAX)
        return self._kept[wanted].page


def _accepts_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics. The order of preferences does not matter: both have all."""
    return any(part.partition(";")[0].strip().lower() == OPENMETRICS for part in accept.split(","))
