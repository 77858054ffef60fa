"""Damaged and crashed stores of RocketMQ: its report after loading each, and ours.

See docs/protocol/store.md#end-of-the-log.

`recovery-cases.json` has the Java store's report after `load()`, before any dispatch; ours is from after
`open`, with queues and index at the log's end. docs/recovery.md explains the differences to operators.
"""

import json
import shutil

import pytest
from attrs import frozen

from tests.faults.rebuilt import Shape, check_rebuilt
from tests.store.dispatching import RECORDED_INDEX, RECORDED_QUEUES, batch_topics
from tests.store.support import FILE_BYTES, VECTORS, copy_store, open_store
from trioha.store.batch_consume_queue import BatchConsumeQueue
from trioha.store.dispatch_settings import DispatchSettings

Bounds = tuple[int, int, int]
"""A queue's min offset, max offset and maxPhysicOffset."""
DAMAGED_AT = {"4.9.7": 20312, "5.3.3": 20267}
"""The record whose body the mid-first-file cases change."""


@frozen
class Ours:
    """Differences from RocketMQ's report, and why."""

    why: str
    log_end: int | None = None
    whole_queues: bool = False
    """Every queue is as in an undamaged store."""
    index_files: int | None = None
    damage_left: bool = False
    """The damaged record is still in the log."""


OURS = {
    ("4.9.7", "normal-mid-first-file-corrupt"): Ours(
        "4.9.7 looks at the last three files and cuts off 114 kB of good messages at the damaged one. After "
        "a clean stop everything was on disk, so damage is not a torn tail: we look for the end in the last "
        "file only, as 5.3.3 does, and `trioha verify` names the record.",
        log_end=134091,
        whole_queues=True,
        damage_left=True,
    ),
    ("4.9.7", "crash-mid-first-file-corrupt"): Ours(
        "The checkpoint vouches for nothing of the log: it is cut at the damage, as by 4.9.7, which keeps "
        "index entries of what was cut, and never indexes what is stored there next.",
        index_files=1,
    ),
    ("5.3.3", "normal-mid-first-file-corrupt"): Ours(
        "As 5.3.3: see 4.9.7's case.",
        damage_left=True,
    ),
    ("5.3.3", "crash-mid-first-file-corrupt"): Ours(
        "As 5.3.3: the checkpoint vouches for the files before the last one, so they are not looked at.",
        damage_left=True,
    ),
    ("4.9.7", "normal-no-consumequeue"): Ours(
        "4.9.7 builds the queues after the load, when dispatch starts; here they are built.",
        whole_queues=True,
    ),
    ("5.3.3", "crash-no-consumequeue"): Ours(
        "5.3.3 builds queues from the newest file that the checkpoint vouches for: earlier messages cannot "
        "be consumed any more. We build them from the log's first record on.",
        whole_queues=True,
    ),
    ("4.9.7", "normal-no-commitlog"): Ours(
        "Keys that lead to no record, and to wrong ones once there are new records, are of no use.",
        index_files=0,
    ),
    ("5.3.3", "normal-no-commitlog"): Ours("See 4.9.7's case.", index_files=0),
}


def cases_of(version):
    found = json.loads((VECTORS / f"store-{version}" / "recovery-cases.json").read_text())
    return {case["case"]: case for case in found}


CASES = [(version, case) for version in ("4.9.7", "5.3.3") for case in cases_of(version)]


def bounds_rocketmq_said(version, case):
    """RocketMQ's report in our terms.

    For a queue that a cut leaves empty, its maxPhysicOffset is the cut, ours -1. For a batch queue, its
    maxPhysicOffset is the last record's start, ours the end, as for all queues.
    """
    ends = {
        found["physicalOffset"]: found["physicalOffset"] + found["size"]
        for found in json.loads((VECTORS / f"store-{version}" / "expected.json").read_text())["messages"]
    }
    bounds = {}
    for queue, said in cases_of(version)[case]["afterLoad"]["queues"].items():
        end = said["maxPhysicOffset"]
        if not said["maxOffset"]:
            end = -1
        elif said["class"] == "BatchConsumeQueue":
            end = ends[end]
        bounds[queue] = (said["minOffset"], said["maxOffset"], end)
    return bounds


def bounds_of(store):
    return {
        f"{queue.topic}@{queue.queue_id}": (queue.min_offset, queue.max_offset, queue.max_physical_offset)
        for queue in store.queues
    }


def test_every_listed_difference_names_an_existing_case():
    assert set(OURS) <= set(CASES)
    assert len(CASES) == 20


@pytest.mark.parametrize(("version", "name"), CASES)
def test_a_damaged_or_crashed_store_of_rocketmq_opens_as_stated(tmp_path, version, name):
    case = cases_of(version)[name]
    root = copy_store(f"store-{version}", tmp_path, kind=case["base"])
    for patch in case["xorPatches"]:
        data = bytearray((root / patch["file"]).read_bytes())
        data[patch["offset"]] ^= patch["xor"]
        (root / patch["file"]).write_bytes(data)
    for removed in case["removed"]:
        if (root / removed).is_dir():
            shutil.rmtree(root / removed)
        else:
            (root / removed).unlink(missing_ok=True)
    said = case["afterLoad"]
    ours = OURS.get((version, name), Ours(""))
    wanted = bounds_rocketmq_said(version, "crash-intact" if ours.whole_queues else name)

    store = open_store(root)

    assert store.commit_log.min_offset == max(said["minPhyOffset"], 0)
    assert store.commit_log.max_offset == (ours.log_end or said["maxPhyOffset"])
    assert store.commit_log.flushed.offset == store.commit_log.max_offset
    assert bounds_of(store) == wanted
    files = said["indexFiles"] if ours.index_files is None else ours.index_files
    assert len(store.index.files) == files
    # Dispatch is done: a master needs the queues before its first put.
    assert store.dispatcher.position == store.commit_log.max_offset
    assert not store.dispatcher.dispatch(store.commit_log.max_offset)
    assert store.dispatcher.faults == 0
    assert {
        f"{topic}@{queue}": offset for (topic, queue), offset in store.commit_log.queue_offsets.items()
    } == {queue: bounds[1] for queue, bounds in wanted.items()}
    assert {type(queue) is BatchConsumeQueue for queue in store.queues if queue.topic == "VecBCQ"} <= {True}
    store.close()

    shape = Shape(
        log_file_bytes=FILE_BYTES,
        queues=RECORDED_QUEUES,
        index=RECORDED_INDEX,
        is_batch_topic=batch_topics(f"store-{version}").__contains__,
        dispatch=DispatchSettings(enable_lmq=True, enable_multi_dispatch=True),
    )
    problems = check_rebuilt(root, shape)
    if ours.damage_left:
        assert len(problems) == 1
        assert f"at offset {DAMAGED_AT[version]}: the body's CRC is not the stored" in problems[0]
    else:
        assert problems == []

    again = open_store(root)
    assert bounds_of(again) == wanted
    assert again.commit_log.max_offset == store.recovered.end_offset
    assert again.recovered.cut_bytes == 0
    assert len(again.index.files) == files
    again.close()
