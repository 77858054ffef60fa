"""List of a store's consume queues, by which a start detects a lost one.

The log's end does not show that a topic's folder was deleted or lost, and a master would count the topic's
messages from 0 again. The file `trioha-queues.json` in the store's root names all queues that have entries,
`{"topic": [queue ids]}`; RocketMQ ignores it. A queue that is in it and not on disk is built again from the
log. Without the file, as in a store of RocketMQ's, no queue counts as lost.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import structlog

from trioha.store.atomic_file import replace_without_backup

log = structlog.get_logger(__name__)

FILE_NAME = "trioha-queues.json"
QueueName = tuple[str, int]


def load_queue_manifest(root: Path) -> frozenset[QueueName]:
    """The queues in the file; none if it is missing or cannot be parsed. Raises OSError."""
    path = root / FILE_NAME
    try:
        found = json.loads(path.read_bytes())
        return frozenset((str(topic), int(queue_id)) for topic, ids in found.items() for queue_id in ids)
    except FileNotFoundError:
        return frozenset()
    except (ValueError, TypeError, AttributeError) as error:
        log.warning(
            "list of queues cannot be read, lost queues are not noticed", path=str(path), reason=str(error)
        )
        return frozenset()


def save_queue_manifest(root: Path, queues: Iterable[QueueName]) -> None:
    """Replace the file and put it on disk. Blocks. Raises OSError."""
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, queue_id in sorted(queues):
        by_topic[topic].append(queue_id)
    replace_without_backup(root / FILE_NAME, json.dumps(by_topic).encode())
