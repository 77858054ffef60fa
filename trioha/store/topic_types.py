"""Topics of a store with batch queues, from `config/topics.json`.

See docs/protocol/store.md#batch-consume-queue, docs/protocol/store.md#configuration-files.
"""

from __future__ import annotations

import json
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_QUEUE_TYPE = "queue.type"
_BATCH = "BatchCQ"


def batch_topics(root: Path) -> frozenset[str]:
    """Topics with attribute `queue.type=BatchCQ`, from the file or, if it cannot be read, its `.bak`.

    Empty without the files, as before 5.0. A file that is not JSON is left unchanged, with a warning; new
    queues are plain ones then, and existing ones stay what they are.
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
