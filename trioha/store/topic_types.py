"""Which topics of a store have batch queues: what `config/topics.json` says (spec store 3.2, 6)."""

from __future__ import annotations

import json
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_QUEUE_TYPE = "queue.type"
_BATCH = "BatchCQ"


def batch_topics(root: Path) -> frozenset[str]:
    """Topics with attribute `queue.type=BatchCQ`, by the first of the file and its `.bak` that can be read.

    None where there is no such file, as before 5.0. A file that is no JSON is left to whom it belongs, with a
    warning: then new queues are plain ones, and those that are there stay what they are.
    """
    for name in ("topics.json", "topics.json.bak"):
        path = root / "config" / name
        try:
            return _batch_topics(json.loads(path.read_bytes()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            log.warning("topic attributes cannot be read", path=str(path), reason=str(error))
    return frozenset()


def _batch_topics(document: object) -> frozenset[str]:
    table = document.get("topicConfigTable") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        return frozenset()
    return frozenset(
        topic
        for topic, config in table.items()
        if isinstance(config, dict)
        and isinstance(attributes := config.get("attributes"), dict)
        and attributes.get(_QUEUE_TYPE) == _BATCH
    )
