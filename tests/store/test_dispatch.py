"""Dispatch builds from a log what RocketMQ built, byte for byte, however it is cut, stopped or damaged."""

import pytest

from tests.store.dispatching import (
    batch_topics,
    files_below,
    parts_of,
    recorded_settings,
)
from tests.store.support import STORES, copy_store, expected, open_log


def rebuilt(name, tmp_path, *, kind="store", records_max=512):
    """The recorded store's folder, and parts built from its log in a folder of their own."""
    root = copy_store(name, tmp_path, kind=kind)
    log, _ = open_log(root / "commitlog", clean_exit=True)
    parts = parts_of(log, tmp_path / "built", batch=batch_topics(name), settings=recorded_settings(name))
    parts.dispatch_all(records_max=records_max)
    return root, parts


@pytest.mark.parametrize("records_max", [1, 7, 512])
@pytest.mark.parametrize("name", STORES)
def test_a_rebuild_equals_rocketmqs_files_byte_for_byte(name, records_max, tmp_path):
    root, parts = rebuilt(name, tmp_path, records_max=records_max)
    assert parts.dispatcher.faults == 0
    for folder in ("consumequeue", "batchconsumequeue"):
        assert files_below(tmp_path / "built" / folder) == files_below(root / folder)
    mine, theirs = files_below(tmp_path / "built/index"), files_below(root / "index")
    assert list(mine.values()) == list(theirs.values())
    assert len(mine) >= 2
    assert all(len(name) == 17 for name in mine)
    assert parts.dispatcher.position == expected(name)["maxPhyOffset"]
