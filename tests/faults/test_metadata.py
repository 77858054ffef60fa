"""The invariants of metadata find what they must: in tables made by hand, in nodes with planted defects."""

import time

import pytest
import trio

from tests.faults import metadata
from tests.faults.cluster import Cluster
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
from tests.faults.nodes import INDEX, QUEUES
from tests.faults.planted import (
    commits_forgotten,
    groups_not_written,
    offsets_one_copy_late,
    offsets_writes_late,
)
from tests.faults.proxy import Direction
from tests.faults.support import plan_of
from trioha.metadata.files import write_metadata
from trioha.metadata.pretty_json import encode_pretty
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request, response_to

Q0, Q1 = ("Topic", 0), ("Topic", 1)
WITHIN_S = 60


@pytest.fixture
def clock(monkeypatch):
    """Sets the time of commits."""
    now = [0.0]
    monkeypatch.setattr(metadata, "now_s", lambda: now[0])

    def set_time(moment_s):
        now[0] = moment_s

    return set_time


def test_a_ledger_knows_what_was_acknowledged_and_what_was_written_before_a_moment(clock):
    ledger = CommitLedger()
    for moment_s, queue, offset in ((1.0, Q0, 5), (2.0, Q1, 7), (3.0, Q0, 9)):
        clock(moment_s)
        ledger.acknowledge(queue, offset)
    assert ledger.acknowledged_before(2.0) == {Q0: 5}
    assert ledger.acknowledged_before(3.0) == {Q0: 5, Q1: 7}
    assert ledger.acknowledged_before(float("inf")) == {Q0: 9, Q1: 7}
    assert ledger.written(3.0) == {}
    for written_s in (1.5, 1.5, 3.5):
        ledger.note_write(written_s)
    # The write at 3.5 may have been made of the table at 1.6.
    assert ledger.written(3.5) == {Q0: 5}
    assert ledger.written(4.0) == {Q0: 9, Q1: 7}
    # A master that has ended begins with what its disk has.
    ledger.restart({Q0: 4})
    assert ledger.acknowledged_before(9.0) == ledger.written(9.0) == {Q0: 4}


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
    ask, other = (
        request(code) for code in (RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_TOPIC_CONFIG)
    )
    read = watch.connection()

    def pass_by(way, *frames):
        for byte in b"".join(frames):
            read(way, bytes([byte]))

    clock(3.0)
    pass_by(Direction.TO_TARGET, encode(other, opaque=1), encode(ask, opaque=2), encode(ask, opaque=3))
    clock(4.0)
    pass_by(
        Direction.TO_CLIENT,
        encode(response_to(other, ResponseCode.SUCCESS, body=b"{}"), opaque=1),
        encode(response_to(ask, ResponseCode.SYSTEM_BUSY), opaque=3),
    )
    assert seen == []
    answer = response_to(ask, ResponseCode.SUCCESS, body=encode_pretty(document).encode())
    pass_by(Direction.TO_CLIENT, encode(answer, opaque=2))
    assert seen == watch.copies == [Copy(3.0, {Q0: 5, Q1: 7})]


def test_the_last_copy_taken_is_the_one_that_began_before_the_success():
    copies = [Copy(1.0, {Q0: 1}), Copy(1.4, {Q0: 2})]
    assert last_taken(copies, 0.5) is None
    # The success may be a little later than known, but the next copy begins a period after it.
    assert last_taken(copies, 0.999) == last_taken(copies, 1.2) == copies[0]
    assert last_taken(copies, 1.399) == last_taken(copies, 5.0) == copies[1]


def answers(offsets, **others):
    tables = {code.name: {"table": {}} for code in COPIED_WHOLE}
    return {**tables, RequestCode.GET_ALL_CONSUMER_OFFSET.name: offsets_document(offsets), **others}


def test_tables_and_offsets_that_differ_or_are_missing_are_found():
    assert check_offsets({Q0: 5, Q1: 8}, {Q0: 5, Q1: 7}, where="slave-1") == []
    assert check_offsets({Q0: 4}, {Q0: 5, Q1: 0}, where="slave-1") == [
        "slave-1: Topic, queue 0 is at 4, committed was 5",
        "slave-1: Topic, queue 1 is at None, committed was 0",
    ]
    assert metadata_differences(answers({Q0: 5}), answers({Q0: 5}), {Q0: 5}) == []
    for code in COPIED_WHOLE:
        (found,) = metadata_differences(answers({}), answers({}, **{code.name: {"table": {"x": 1}}}), {})
        assert found.startswith(f"{code.name}: ")
    silent = metadata_differences({}, {}, {})
    assert [found.partition(":")[0] for found in silent] == [one.name for one in COPIED_WHOLE]
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


# -- planted defects, and a promotion ----------------------------------------------------------------------


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


@pytest.mark.full
@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "defect", "where"),
    [
        ("slave-1", offsets_one_copy_late, "slave-1, when master had ended: "),
        (MASTER, offsets_writes_late, "the disk of the master, when it had ended: "),
        (MASTER, commits_forgotten, "the answer to slave-1: "),
    ],
    ids=lambda value: getattr(value, "what", None),
)
def test_a_node_that_loses_offsets_is_found(tmp_path, name, defect, where):
    plan = plan_of(role="ASYNC_MASTER")
    with Cluster(plan, tmp_path, programs={name: defect.program}) as cluster:
        cluster.begin()
        kill_the_master_until(cluster, lambda: cluster.violations)
    assert [violation for violation in cluster.violations if violation.startswith(where)]


@pytest.mark.full
@pytest.mark.process
def test_a_slave_that_does_not_write_a_table_is_found(tmp_path):
    plan = plan_of(role="ASYNC_MASTER")
    with Cluster(plan, tmp_path, programs={"slave-1": groups_not_written.program}) as cluster:
        cluster.metadata_within_s = 2.0
        cluster.begin()
        with pytest.raises(AssertionError, match=r"subscriptionGroup\.json: master has"):
            cluster.settle()
    assert cluster.violations == []


@pytest.mark.full
@pytest.mark.process
def test_a_slave_that_is_promoted_after_a_kill_goes_on_with_what_its_last_copy_had(tmp_path, start_node):
    plan = plan_of(role="ASYNC_MASTER")
    with Cluster(plan, tmp_path) as cluster:
        cluster.begin()
        kill_the_master_until(cluster, lambda: cluster.offset_checks)
        copied = cluster.checked_copies["slave-1"].offsets
        cluster.stop("slave-1")
    assert cluster.violations == []
    assert copied
    promoted = start_node(
        "slave-1",
        role="ASYNC_MASTER",
        mappedFileSizeCommitLog=plan.setup.file_bytes,
        mappedFileSizeConsumeQueue=QUEUES.file_bytes,
        maxHashSlotNum=INDEX.hash_slots,
        maxIndexNum=INDEX.index_num,
    )
    tables = trio.run(fetch_tables, promoted.listen_address)
    held = offsets_in(tables[RequestCode.GET_ALL_CONSUMER_OFFSET.name])
    assert check_offsets(held, copied, where="the promoted slave") == []
