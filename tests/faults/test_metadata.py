"""The invariants of metadata find what they must: in tables made by hand, in nodes with planted defects."""

import time

import pytest
import trio

from tests.faults import metadata
from tests.faults.cluster import INDEX, QUEUES, Cluster
from tests.faults.faults import MASTER
from tests.faults.metadata import (
    COPIED_WHOLE,
    GROUP,
    CommitLedger,
    Copy,
    CopyWatch,
    check_offsets,
    fetch_tables,
    file_differences,
    last_taken,
    metadata_differences,
    offsets_in,
)
from tests.faults.planted import Defect
from tests.faults.proxy import Direction
from tests.faults.test_scenarios import plan_of
from tests.node_process import TriohaNode
from trioha.metadata.files import write_metadata
from trioha.metadata.pretty_json import encode_pretty
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request, response_to

Q0, Q1 = ("Topic", 0), ("Topic", 1)
WITHIN_S = 60


# -- the ledger --------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Sets the time of commits."""
    now = [0.0]
    monkeypatch.setattr(metadata, "now_s", lambda: now[0])

    def set_time(moment_s):
        now[0] = moment_s

    return set_time


def test_a_ledger_knows_what_was_acknowledged_before_a_moment(clock):
    ledger = CommitLedger()
    for moment_s, queue, offset in ((1.0, Q0, 5), (2.0, Q1, 7), (3.0, Q0, 9)):
        clock(moment_s)
        ledger.acknowledge(queue, offset)
    assert ledger.acknowledged_before(2.0) == {Q0: 5}
    assert ledger.acknowledged_before(3.0) == {Q0: 5, Q1: 7}
    assert ledger.acknowledged_before(float("inf")) == {Q0: 9, Q1: 7}


def test_a_write_has_what_was_acknowledged_before_the_write_before_it(clock):
    ledger = CommitLedger()
    clock(1.0)
    ledger.acknowledge(Q0, 5)
    clock(2.5)
    ledger.acknowledge(Q0, 6)
    assert ledger.written(3.0) == {}
    for written_s in (2.0, 2.0, 3.0):
        ledger.note_write(written_s)
    # The write at 3.0 may have been made of the table at 2.1.
    assert ledger.written(3.0) == {Q0: 5}
    assert ledger.written(4.0) == {Q0: 6}


def test_a_master_that_has_ended_begins_with_what_its_disk_has(clock):
    ledger = CommitLedger()
    clock(1.0)
    ledger.acknowledge(Q0, 5)
    ledger.acknowledge(Q1, 5)
    ledger.note_write(2.0)
    ledger.restart({Q0: 4})
    assert ledger.acknowledged_before(9.0) == ledger.written(9.0) == {Q0: 4}


# -- copies ------------------------------------------------------------------------------------------------


def offsets_document(offsets):
    table = {}
    for (topic, queue_id), offset in offsets.items():
        table.setdefault(f"{topic}@{GROUP}", {})[queue_id] = offset
    return {"offsetTable": table}


def test_copies_are_read_from_the_bytes_of_a_link_however_they_are_cut(clock):
    seen = []
    watch = CopyWatch(seen.append)
    document = offsets_document({Q0: 5, Q1: 7})
    document["offsetTable"]["Topic@others"] = {0: 9}
    ask = request(RequestCode.GET_ALL_CONSUMER_OFFSET)
    answer = response_to(ask, ResponseCode.SUCCESS, body=encode_pretty(document).encode())
    other = request(RequestCode.GET_ALL_TOPIC_CONFIG)
    read = watch.connection()
    clock(3.0)
    for byte in encode(other, opaque=1) + encode(ask, opaque=2):
        read(Direction.TO_TARGET, bytes([byte]))
    clock(4.0)
    for byte in encode(response_to(other, ResponseCode.SUCCESS, body=b"{}"), opaque=1):
        read(Direction.TO_CLIENT, bytes([byte]))
    assert seen == []
    for byte in encode(answer, opaque=2):
        read(Direction.TO_CLIENT, bytes([byte]))
    assert seen == watch.copies == [Copy(3.0, {Q0: 5, Q1: 7})]


def test_a_refused_copy_is_none():
    watch = CopyWatch(lambda _copy: pytest.fail("nothing was copied"))
    ask = request(RequestCode.GET_ALL_CONSUMER_OFFSET)
    read = watch.connection()
    read(Direction.TO_TARGET, encode(ask, opaque=1))
    read(Direction.TO_CLIENT, encode(response_to(ask, ResponseCode.SYSTEM_BUSY), opaque=1))
    assert watch.copies == []


def test_the_last_copy_taken_is_the_one_that_began_before_the_success():
    copies = [Copy(1.0, {Q0: 1}), Copy(1.4, {Q0: 2})]
    assert last_taken(copies, 0.5) is None
    # The success may be a little later than known, but the next copy begins a period after it.
    assert last_taken(copies, 0.999) == last_taken(copies, 1.2) == copies[0]
    assert last_taken(copies, 1.399) == last_taken(copies, 5.0) == copies[1]


# -- tables ------------------------------------------------------------------------------------------------


def test_an_offset_that_is_missing_or_earlier_is_found():
    assert check_offsets({Q0: 5, Q1: 8}, {Q0: 5, Q1: 7}, where="slave-1") == []
    assert check_offsets({Q0: 4}, {Q0: 5, Q1: 0}, where="slave-1") == [
        "slave-1: Topic, queue 0 is at 4, committed was 5",
        "slave-1: Topic, queue 1 is at None, committed was 0",
    ]


def answers(offsets, **others):
    tables = {code.name: {"table": {}} for code in COPIED_WHOLE}
    return {**tables, RequestCode.GET_ALL_CONSUMER_OFFSET.name: offsets_document(offsets), **others}


def test_equal_tables_are_no_difference():
    assert metadata_differences(answers({Q0: 5}), answers({Q0: 5}), {Q0: 5}) == []


@pytest.mark.parametrize("code", COPIED_WHOLE)
def test_a_table_that_differs_or_is_missing_is_found(code):
    (found,) = metadata_differences(answers({}), answers({}, **{code.name: {"table": {"x": 1}}}), {})
    assert found.startswith(f"{code.name}: ")
    silent = metadata_differences({}, {}, {})
    assert [found.partition(":")[0] for found in silent] == [one.name for one in COPIED_WHOLE]


def test_offsets_that_differ_on_either_side_are_found():
    differences = metadata_differences(answers({Q0: 4}), answers({Q0: 5, Q1: 1}), {Q0: 5})
    assert [found.partition(",")[0] for found in differences] == [
        "offsets of faults-readers: the master has {('Topic'",
        "offsets of faults-readers: the slave has {('Topic'",
    ]


def write_store(root, *, offsets, topics=("Topic",)):
    documents = {
        "topics.json": {"topicConfigTable": {name: {"topicName": name} for name in topics}},
        "subscriptionGroup.json": {"subscriptionGroupTable": {}},
        "delayOffset.json": {"offsetTable": {}},
        "consumerOffset.json": offsets_document(offsets),
    }
    for name, document in documents.items():
        write_metadata(root / "config" / name, encode_pretty(document))
    return root


def test_files_that_differ_are_found(tmp_path):
    master = write_store(tmp_path / "master", offsets={Q0: 5})
    equal = write_store(tmp_path / "equal", offsets={Q0: 5})
    assert file_differences([master, equal], {Q0: 5}) == []
    other = write_store(tmp_path / "other", offsets={Q0: 4}, topics=())
    found = file_differences([master, equal, other], {Q0: 5})
    assert [text.partition(" has ")[0] for text in found] == [
        "topics.json: master",
        "consumerOffset.json: other",
    ]
    (other / "config" / "subscriptionGroup.json").unlink()
    assert any("other None" in text for text in file_differences([master, other], {Q0: 5}))


# -- planted defects ---------------------------------------------------------------------------------------


def kill_the_master_until(cluster, condition):
    """Kill the master, and start it again until `condition` holds after a kill."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        # Under load, so that two copies or two writes are seldom equal.
        seen, promised = cluster.metadata_copies, len(cluster.promises)
        while cluster.metadata_copies < seen + 4 or len(cluster.promises) < promised + 20:
            assert time.monotonic() < deadline_s
            cluster.pause(0.02)
        cluster.kill([MASTER])
        if condition():
            return
        cluster.start(MASTER)


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "defect", "where"),
    [
        ("slave-1", Defect.OFFSETS_ONE_COPY_LATE, "slave-1, when master had ended: "),
        (MASTER, Defect.OFFSETS_WRITES_LATE, "the disk of the master, when it had ended: "),
        (MASTER, Defect.COMMITS_FORGOTTEN, "the answer to slave-1: "),
    ],
)
def test_a_node_that_loses_offsets_is_found(tmp_path, name, defect, where):
    plan = plan_of(role="ASYNC_MASTER")
    with Cluster(plan, tmp_path, programs={name: defect.program}) as cluster:
        cluster.begin()
        kill_the_master_until(cluster, lambda: cluster.violations)
    assert [violation for violation in cluster.violations if violation.startswith(where)]


@pytest.mark.process
def test_a_slave_that_does_not_write_a_table_is_found(tmp_path):
    plan = plan_of(role="ASYNC_MASTER")
    with Cluster(plan, tmp_path, programs={"slave-1": Defect.GROUPS_NOT_WRITTEN.program}) as cluster:
        cluster.metadata_within_s = 2.0
        cluster.begin()
        with pytest.raises(AssertionError, match=r"subscriptionGroup\.json: master has"):
            cluster.settle()
    assert cluster.violations == []


@pytest.mark.process
def test_a_slave_that_is_promoted_after_a_kill_goes_on_with_what_its_last_copy_had(tmp_path):
    plan = plan_of(role="ASYNC_MASTER")
    with Cluster(plan, tmp_path) as cluster:
        cluster.begin()
        kill_the_master_until(cluster, lambda: cluster.offset_checks)
        copied = cluster.checked_copies["slave-1"].offsets
        cluster.stop("slave-1")
    assert cluster.violations == []
    assert copied
    promoted = TriohaNode(
        cluster.store("slave-1"),
        role="ASYNC_MASTER",
        mappedFileSizeCommitLog=plan.setup.file_bytes,
        mappedFileSizeConsumeQueue=QUEUES.file_bytes,
        maxHashSlotNum=INDEX.hash_slots,
        maxIndexNum=INDEX.index_num,
    )
    try:
        tables = trio.run(fetch_tables, promoted.listen_address)
        held = offsets_in(tables[RequestCode.GET_ALL_CONSUMER_OFFSET.name])
        assert check_offsets(held, copied, where="the promoted slave") == []
    finally:
        promoted.kill()
