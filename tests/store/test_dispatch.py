"""Dispatch builds from a log the same files as RocketMQ, also if the log is cut, stopped or damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import resources_closed
from tests.store.dispatching import (
    batch_topics,
    files_below,
    parts_of,
    recorded_settings,
)
from tests.store.support import FILE_BYTES, STORES, copy_store, expected, message, offsets_of, open_log
from trioha.store.checkpoint import Checkpoint
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.dispatch_start import start_position
from trioha.store.index_file import IndexShape
from trioha.store.message_properties import parse_properties
from trioha.store.tags import java_hash, tags_code


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


@pytest.mark.parametrize("name", STORES[:2])
def test_a_rebuild_from_a_crashed_store_equals_its_queues(name, tmp_path):
    root, parts = rebuilt(name, tmp_path, kind="crash-store")
    built = files_below(tmp_path / "built/consumequeue")
    assert built == files_below(root / "consumequeue")
    assert parts.dispatcher.faults == 0


@pytest.mark.parametrize("name", STORES)
def test_dispatching_all_again_changes_no_file(name, tmp_path):
    _, parts = rebuilt(name, tmp_path)
    before = files_below(tmp_path / "built")
    parts.dispatcher.rewind(0)
    assert parts.dispatch_all() == len([m for m in expected(name)["messages"] if not m.get("blank")])
    assert files_below(tmp_path / "built") == before


@pytest.mark.parametrize("name", STORES)
def test_a_rebuild_stopped_anywhere_goes_on_to_the_same_files(name, tmp_path):
    root = copy_store(name, tmp_path)
    log, _ = open_log(root / "commitlog")
    whole = parts_of(log, tmp_path / "whole", batch=batch_topics(name), settings=recorded_settings(name))
    whole.dispatch_all()
    parts = None
    while parts is None or parts.dispatcher.position < log.max_offset:
        # A new process each time, which starts where its own files end.
        queues_known = parts_of(log, tmp_path / "built", batch=batch_topics(name))
        position = start_position(log, queues_known.queues, clean_exit=True, checkpoint=Checkpoint())
        queues_known.close()
        parts = parts_of(
            log,
            tmp_path / "built",
            batch=batch_topics(name),
            settings=recorded_settings(name),
            position=position,
        )
        assert parts.dispatcher.dispatch(log.max_offset, records_max=17) > 0
        parts.close()
    built, wanted = files_below(tmp_path / "built"), files_below(tmp_path / "whole")
    assert list(built.values()) == list(wanted.values())


def test_transaction_types_enter_queue_and_index_as_the_broker_has_it(tmp_path):
    log, _ = open_log(tmp_path / "log")
    kinds = {"plain": 0, "prepared": 0x4, "commit": 0x8, "rollback": 0xC}
    offsets = {
        kind: log.append(message(properties=f"KEYS\x01{kind}".encode(), sys_flag=flag)).physical_offset
        for kind, flag in kinds.items()
    }
    parts = parts_of(log, tmp_path / "store")
    parts.dispatch_all()
    queue = parts.queues.find("Orders", 0)
    assert [entry.physical_offset for entry in queue.entries(0, 9)] == [offsets["plain"], offsets["commit"]]
    indexed = {kind: offsets_of(parts.index, "Orders", kind) for kind in kinds}
    assert indexed == {
        "plain": [offsets["plain"]],
        "prepared": [offsets["prepared"]],
        "commit": [offsets["commit"]],
        "rollback": [],
    }


# Properties as clients may send them: empty values, doubles, separators inside, no end, not UTF-8, not ASCII.
RAW_PROPERTIES = st.lists(
    st.tuples(
        st.sampled_from([b"KEYS", b"UNIQ_KEY", b"TAGS", b"XKEYS", b"KEY", b"A", b""]),
        st.sampled_from([b"\x01", b"", b"\x01\x01"]),
        st.sampled_from(
            [b"", b"a", b"b c", b" d  e ", b"x\x01y", "é\U0001f680".encode(), b"\xff\xfe", b"k" * 150]
        ),
        st.sampled_from([b"\x02", b"", b"\x02\x02"]),
    ),
    max_size=8,
).map(lambda parts: b"".join(b"".join(part) for part in parts))


@given(properties=st.lists(RAW_PROPERTIES, min_size=1, max_size=6))
@resources_closed()
def test_tags_and_keys_are_those_that_the_broker_parses(tmp_path_factory, properties):
    folder = tmp_path_factory.mktemp("properties")
    log, _ = open_log(folder / "log")
    offsets = [log.append(message(properties=raw)).physical_offset for raw in properties]
    parts = parts_of(log, folder / "store", shape=IndexShape(hash_slots=31, index_num=200))
    parts.dispatch_all()
    codes, keys = [], []
    for raw, offset in zip(properties, offsets, strict=True):
        found = parse_properties(raw)
        codes.append(tags_code(found.get("TAGS", "")))
        named = [found["UNIQ_KEY"]] if "UNIQ_KEY" in found else []
        named += [key for key in found.get("KEYS", "").split(" ") if key]
        keys += [(key, offset) for key in named]
    queue = parts.queues.find("Orders", 0)
    assert [entry.tags_code for entry in queue.entries(0, 99)] == codes
    assert sum(file.index_count - 1 for file in parts.index.files) == len(keys)
    for key, _ in keys:
        wanted = {
            offset for other, offset in keys if java_hash(f"Orders#{other}") == java_hash(f"Orders#{key}")
        }
        assert set(offsets_of(parts.index, "Orders", key)) == wanted
    parts.close()


# -- without a queue -----------------------------------------------------------------------------------------


def test_without_an_index_only_queues_are_built(tmp_path):
    log, _ = filled(tmp_path, 5)
    parts = parts_of(log, tmp_path / "store", settings=DispatchSettings(message_index_enable=False))
    parts.dispatch_all()
    assert parts.queues.find("Orders", 0).max_offset == 5
    assert not (tmp_path / "store/index").exists()


def test_records_of_topics_that_cannot_be_folders_are_counted_and_passed(tmp_path):
    log, _ = open_log(tmp_path / "log")
    for topic in ("..x..xescape", "fine", "axb"):
        log.append(message(topic=topic))
    # A topic has no checksum: a replica appends the bytes of its master.
    view = log.files[0].view
    view[: log.max_offset] = (
        bytes(view[: log.max_offset])
        .replace(b"..x..xescape", b"../../escape")
        .replace(b"\x03axb", b"\x03a/b")
    )
    parts = parts_of(log, tmp_path / "store")
    assert parts.dispatch_all() == 3
    assert parts.dispatcher.faults == 2
    assert "cannot name a folder" in parts.dispatcher.last_fault.reason
    assert parts.queues.find("fine", 0).max_offset == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "store"]
    assert not (tmp_path.parent / "escape").exists()


@pytest.mark.parametrize(
    "properties",
    [
        b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010\x02",
        b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x01zero\x02",
        b"INNER_MULTI_DISPATCH\x01%LMQ%../x\x02INNER_MULTI_QUEUE_OFFSET\x010\x02",
    ],
)
def test_multi_dispatch_that_does_not_fit_is_counted_and_the_main_queue_is_right(properties, tmp_path):
    log, _ = open_log(tmp_path / "log")
    # As in the log of a RocketMQ master.
    log.append(message(properties=properties))
    settings = DispatchSettings(enable_lmq=True, enable_multi_dispatch=True)
    parts = parts_of(log, tmp_path / "store", settings=settings)
    assert parts.dispatch_all() == 1
    assert parts.dispatcher.faults == 1
    assert parts.queues.find("Orders", 0).max_offset == 1


# -- bad records ---------------------------------------------------------------------------------------------


def filled(tmp_path, count, *, body_bytes=100, directory="log"):
    """A log with `count` messages of one queue, and their results."""
    log, _ = open_log(tmp_path / directory)
    results = [
        log.append(message(bytes(body_bytes), properties=f"KEYS\x01k{number}\x02TAGS\x01t".encode()))
        for number in range(count)
    ]
    return log, results


def damage(log, offset, data):
    file = next(file for file in log.files if file.start_offset <= offset < file.end_offset)
    at = offset - file.start_offset
    file.view[at : at + len(data)] = data


@pytest.mark.parametrize("is_slave", [False, True])
def test_a_whole_record_that_is_wrong_inside_is_passed_by_its_size(is_slave, tmp_path):
    log, results = filled(tmp_path, 6)
    damage(log, results[2].physical_offset + 84, b"\x00\x00\x00\x07")
    parts = parts_of(log, tmp_path / "store", settings=DispatchSettings(is_slave=is_slave))
    assert parts.dispatch_all() == 6
    assert parts.dispatcher.faults == 1
    assert parts.dispatcher.last_fault.physical_offset == results[2].physical_offset
    assert "do not add up" in parts.dispatcher.last_fault.reason
    queue = parts.queues.find("Orders", 0)
    assert [entry.physical_offset for entry in queue.entries(0, 9) if not entry.is_blank] == [
        result.physical_offset for number, result in enumerate(results) if number != 2
    ]
    assert queue.entry(5).physical_offset == results[5].physical_offset


def test_after_an_unreadable_record_a_master_dispatches_the_next_file(tmp_path):
    log, results = filled(tmp_path, 60, body_bytes=3000)
    damage(log, results[2].physical_offset, b"\xff" * 8)
    parts = parts_of(log, tmp_path / "store")
    parts.dispatch_all()
    assert parts.dispatcher.position == log.max_offset
    assert parts.dispatcher.faults == 1
    first_of_next = next(r for r in results if r.physical_offset == FILE_BYTES)
    queue = parts.queues.find("Orders", 0)
    offsets = [entry.physical_offset for entry in queue.entries(0, 99)]
    assert offsets[:2] == [results[0].physical_offset, results[1].physical_offset]
    assert offsets[-1] == results[-1].physical_offset
    assert first_of_next.physical_offset in offsets


def test_a_slave_waits_at_an_unreadable_record_until_it_is_readable(tmp_path):
    log, results = filled(tmp_path, 5)
    bad = results[3].physical_offset
    good = bytes(log.read(bad, 8))
    damage(log, bad, b"\xff" * 8)
    parts = parts_of(log, tmp_path / "store", settings=DispatchSettings(is_slave=True))
    dispatcher = parts.dispatcher
    assert dispatcher.dispatch(log.max_offset) == 3
    assert dispatcher.dispatch(log.max_offset) == 0
    assert (dispatcher.position, dispatcher.stuck_at, dispatcher.faults) == (bad, bad, 1)
    damage(log, bad, good)
    assert dispatcher.dispatch(log.max_offset) == 2
    assert (dispatcher.position, dispatcher.stuck_at, dispatcher.faults) == (log.max_offset, -1, 1)


def test_a_promoted_slave_dispatches_on_after_the_record_it_waited_at(tmp_path):
    log, results = filled(tmp_path, 5)
    damage(log, results[3].physical_offset, b"\xff" * 8)
    slave = parts_of(log, tmp_path / "store", settings=DispatchSettings(is_slave=True))
    slave.dispatch_all()
    assert slave.dispatcher.position == results[3].physical_offset
    master = parts_of(log, tmp_path / "store")
    master.dispatch_all()
    assert master.dispatcher.position == log.max_offset


@given(
    patches=st.lists(st.tuples(st.integers(0, 40_000), st.binary(min_size=1, max_size=12)), max_size=6),
    is_slave=st.booleans(),
)
@resources_closed()
def test_damaged_logs_are_dispatched_to_their_end_or_to_where_a_slave_waits(
    tmp_path_factory, patches, is_slave
):
    folder = tmp_path_factory.mktemp("damaged")
    log, _ = filled(folder, 150, body_bytes=200)
    for offset, data in patches:
        damage(log, offset, data[: log.max_offset - offset])
    dispatch_settings = DispatchSettings(is_slave=is_slave, enable_lmq=True, enable_multi_dispatch=True)
    parts = parts_of(log, folder / "store", settings=dispatch_settings)
    parts.dispatch_all(records_max=40)
    dispatcher = parts.dispatcher
    assert dispatcher.position in {log.max_offset, dispatcher.stuck_at}
    assert dispatcher.stuck_at < 0 or is_slave
    if not patches:
        assert dispatcher.faults == 0
    parts.close()


# -- disk, restarts, cuts ------------------------------------------------------------------------------------


def test_dispatch_begins_where_the_stop_allows(tmp_path):
    log, results = filled(tmp_path, 60, body_bytes=3000)
    parts = parts_of(log, tmp_path / "store")
    nothing = Checkpoint()

    def start(**how):
        return start_position(log, parts.queues, **{"clean_exit": True, "checkpoint": nothing} | how)

    assert start() == 0
    parts.dispatcher.dispatch(log.max_offset, records_max=50)
    known = results[49].end_offset
    assert start() == known
    assert start(redispatch_from=400) == 400
    # Unclean, with an empty checkpoint: all of it.
    assert start(clean_exit=False) == 0
    # Unclean, all files began long before the checkpoint: the newest file that the queues reach.
    later = results[-1].store_timestamp_ms + 10_000
    safe = Checkpoint(physic_msg_timestamp_ms=later, logics_msg_timestamp_ms=later)
    assert start(clean_exit=False, checkpoint=safe) == 2 * FILE_BYTES
    parts.queues.destroy()
    assert start(clean_exit=False, checkpoint=safe) == 0
