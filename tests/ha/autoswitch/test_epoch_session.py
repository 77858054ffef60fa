"""The rules of a slave in controller mode: any history of masters, orphans and crashes."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import resources_closed
from tests.ha.autoswitch.support import begin_epoch, epochs_of, frames_of, open_epoch_store, put
from tests.store.crashes import Crash, CrashingDisk
from tests.store.support import cut_store, log_bytes
from trioha.errors import RemoteProtocolError
from trioha.ha.autoswitch.consistent_point import Kept
from trioha.ha.autoswitch.epoch_session import BEHIND_BYTES_MAX, EpochSession
from trioha.ha.autoswitch.frames import (
    MasterHandshake,
    MasterStreamDecoder,
    TransferHeader,
    encode_master_handshake,
    encode_transfer_header,
)
from trioha.ha.followed_log import ReplicationError
from trioha.ha.replication_session import ReplicationSettings
from trioha.recording.events import CloseReason
from trioha.store.epochs import EpochEntry
from trioha.store.replica import ReplicaAppender

FILE_BYTES = 4096
BROKERS = 3


def open_small_store(root):
    return open_epoch_store(root, file_bytes=FILE_BYTES)


def cut_at_once(store):
    """`Cutter.steps` without a thread."""

    def steps(offset):
        cut_store(store, offset)
        return iter(())

    return steps


def session_of(store, *, tail_check_bytes=1024, confirmed=None, kept=None):
    return EpochSession(
        store.commit_log,
        ReplicationSettings(tail_check_bytes=tail_check_bytes),
        epochs=store.epochs,
        cut=cut_at_once(store),
        on_confirm=(confirmed if confirmed is not None else []).append,
        on_epoch=[].append,
        kept=kept,
    )


def handshake_of(store):
    return MasterHandshake(store.commit_log.max_offset, store.epochs.last_epoch, store.epochs.entries)


def follow(session, slave, master, *, batch_bytes=500, frames_max=None):
    """One connection on which up to `frames_max` frames arrive.

    Checks at each step that only bytes that both logs have are acknowledged.
    """
    session.begin()
    session.receive_handshake(handshake_of(master))
    theirs = log_bytes(master.commit_log)

    def check():
        ack_offset = session.ack_offset
        assert log_bytes(slave.commit_log)[:ack_offset] == theirs[:ack_offset]
        if session.is_checked:
            assert theirs.startswith(log_bytes(slave.commit_log))

    check()
    frames = frames_of(master, session.ack_offset, batch_bytes=batch_bytes, confirm=len(theirs))
    for number, (header, body) in enumerate(frames):
        if number == frames_max:
            break
        session.receive_header(header)
        session.receive_body(memoryview(bytearray(body)), confirm_offset=header.confirm_offset)
        check()


def test_without_a_tail_check_a_log_in_step_has_caught_up_at_the_handshake(tmp_path):
    master, slave = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    put(master, b"1", b"2")
    session = session_of(slave, tail_check_bytes=0)
    follow(session, slave, master)
    session.begin()
    assert not session.has_caught_up
    session.receive_handshake(handshake_of(master))
    assert session.has_caught_up
    put(master, b"3")
    session.begin()
    session.receive_handshake(handshake_of(master))
    assert not session.has_caught_up


def test_a_slave_has_caught_up_as_long_as_it_is_close_to_what_is_confirmed(tmp_path):
    """A member of the set always is: what is confirmed waits for it."""
    master, slave = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    end = put(master, b"1")
    session = session_of(slave)
    session.begin()
    session.receive_handshake(handshake_of(master))
    ((header, body),) = frames_of(master, 0, confirm=end + 1)
    session.receive_header(header)
    session.receive_body(memoryview(bytearray(body)), confirm_offset=end + 1)
    # Others have more, of which this log has nothing yet.
    assert not session.has_caught_up
    for behind_bytes, has_caught_up in (
        (0, True),
        (BEHIND_BYTES_MAX, True),
        (BEHIND_BYTES_MAX + 1, False),
        (1, False),
        (0, True),
    ):
        session.receive_confirm(end + behind_bytes)
        assert session.has_caught_up is has_caught_up


STEPS = st.lists(
    st.tuples(
        # who is elected; how many messages it stores; what each other one receives of them
        st.integers(0, BROKERS - 1),
        st.integers(0, 9),
        st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=BROKERS, max_size=BROKERS),
        st.sampled_from([100, 500, 1 << 20]),
    ),
    min_size=1,
    max_size=8,
)


@define
class History:
    """Brokers of one group whose masters change at any time."""

    stores: list
    epoch: int = 0
    number: int = 0

    def elect(self, broker, messages):
        self.epoch += 1
        begin_epoch(self.stores[broker], self.epoch)
        for _ in range(messages):
            self.number += 1
            put(self.stores[broker], b"%d of %d" % (self.number, self.epoch) * (10 + 37 * self.number % 90))

    def replicate(self, broker, master, **options):
        """Let `broker` follow; whether nothing of its log had to be set aside or refused."""
        store = self.stores[broker]
        before = log_bytes(store.commit_log), epochs_of(store)
        reason = CloseReason.NONE
        try:
            follow(session_of(store), store, self.stores[master], **options)
        except ReplicationError as error:
            reason = error.reason
        if reason is not CloseReason.NONE:
            # Elections without the sync-state set's rules leave logs that have nothing in common.
            assert reason in {CloseReason.LOG_RESTARTED, CloseReason.DIVERGED}
            assert not {entry for entry in before[1] if entry[1]} & set(epochs_of(self.stores[master]))
            assert (log_bytes(store.commit_log), epochs_of(store)) == before
            return False
        return True


@given(STEPS)
def test_after_any_history_of_masters_a_slaves_log_is_a_prefix_of_its_masters(steps):
    with tempfile.TemporaryDirectory() as folder, resources_closed():
        history = History([open_small_store(Path(folder) / str(number)) for number in range(BROKERS)])
        for master, messages, received, batch_bytes in steps:
            history.elect(master, messages)
            for broker, frames_max in enumerate(received):
                if broker == master or frames_max is None:
                    continue
                history.replicate(broker, master, frames_max=frames_max, batch_bytes=batch_bytes)
        master = steps[-1][0]
        master_log = log_bytes(history.stores[master].commit_log)
        for broker, store in enumerate(history.stores):
            if broker != master and history.replicate(broker, master):
                assert log_bytes(store.commit_log) == master_log
                own = [entry for entry in epochs_of(store) if entry[1] < len(master_log)]
                assert own == [
                    entry for entry in epochs_of(history.stores[master]) if entry[1] < len(master_log)
                ]


@pytest.mark.full
def test_after_a_crash_at_any_call_of_the_cut_the_slave_follows_as_if_there_was_none(tmp_path):
    with resources_closed():
        master, template = (open_small_store(tmp_path / name) for name in ("master", "template"))
        begin_epoch(master, 1)
        put(master, *(b"%d" % number * 50 for number in range(40)))
        follow(session_of(template), template, master)
        begin_epoch(template, 2)
        put(template, *(b"orphan" * 40 for _ in range(40)))
        begin_epoch(master, 3)
        put(master, *(b"new" * 30 for _ in range(10)))
        expected = log_bytes(master.commit_log)
    crashes = 0
    while True:
        copy = Path(shutil.copytree(tmp_path / "template", tmp_path / f"crash-{crashes}"))
        is_crashed = False
        with resources_closed():
            master, store = open_small_store(tmp_path / "master"), open_small_store(copy)
            session = session_of(store)
            before = log_bytes(store.commit_log)
            with CrashingDisk(crashes).in_use():
                try:
                    follow(session, store, master)
                except Crash:
                    is_crashed = True
        with resources_closed():
            master, store = open_small_store(tmp_path / "master"), open_small_store(copy)
            after = log_bytes(store.commit_log)
            # Uncut, or a prefix of the master's: never a mix.
            assert after == before or expected.startswith(after)
            follow(session_of(store), store, master)
            assert log_bytes(store.commit_log) == expected
            assert epochs_of(store) == epochs_of(master)
        shutil.rmtree(copy)
        if not is_crashed:
            break
        crashes += 1
    assert crashes >= 20


def test_a_connection_that_ends_inside_a_record_leaves_no_entry_beyond_the_logs_end(tmp_path):
    master, store = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    put(master, b"a" * 700)
    begin_epoch(master, 2)
    put(master, b"b")
    session = session_of(store)
    session.begin()
    session.receive_handshake(handshake_of(master))
    (header, body), *_ = frames_of(master, 0)
    session.receive_header(header)
    session.receive_body(memoryview(body)[:-1], confirm_offset=0)
    assert store.commit_log.is_empty
    follow(session, store, master)
    assert epochs_of(store) == epochs_of(master)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


def test_the_confirm_offset_is_never_beyond_the_own_log_and_goes_back_with_a_cut(tmp_path):
    master, store = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    shared = put(master, b"a" * 700)
    confirmed = []
    session = session_of(store, confirmed=confirmed)
    follow(session, store, master)
    assert confirmed[-1] == session.confirm_offset == shared
    begin_epoch(store, 2)
    put(store, b"orphan")
    session.receive_confirm(1 << 40)
    assert session.confirm_offset == store.commit_log.max_offset > shared
    begin_epoch(master, 3)
    session.begin()
    session.receive_handshake(handshake_of(master))
    session.receive_body(memoryview(log_bytes(master.commit_log)[1:]), confirm_offset=shared - 1)
    assert confirmed[-2:] == [shared, shared - 1]
    assert epochs_of(store) == [(1, 0), (3, shared)]


def test_an_epoch_that_begins_inside_a_record_is_dropped_with_the_part_of_the_record(tmp_path):
    master, store = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    first_end = put(master, b"a" * 700)
    put(master, b"b" * 700)
    session = session_of(store)
    session.begin()
    epochs = (EpochEntry(1, 0), EpochEntry(2, first_end + 50))
    session.receive_handshake(MasterHandshake(master.commit_log.max_offset, 2, epochs))
    session.receive_header(TransferHeader(0, first_end + 100, 2, first_end + 50, 0))
    session.receive_body(memoryview(log_bytes(master.commit_log))[: first_end + 100], confirm_offset=0)
    assert store.commit_log.max_offset == first_end
    session.begin()
    assert epochs_of(store) == [(1, 0)]


def test_an_own_epoch_without_bytes_is_dropped_for_the_masters(tmp_path):
    """It was elected at the log's end, and stored nothing before the next master was."""
    master, store = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    put(master, b"a" * 700)
    follow(session_of(store), store, master)
    begin_epoch(store, 2)
    put(master, b"more of epoch 1")
    begin_epoch(master, 3)
    put(master, b"of epoch 3")
    follow(session_of(store), store, master)
    assert epochs_of(store) == epochs_of(master)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


def test_a_master_that_begins_at_a_files_start_is_followed_from_there(tmp_path):
    """It need not have the file before, so nothing is compared."""
    master, store = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    while master.commit_log.max_offset < FILE_BYTES:
        put(master, b"a" * 700)
    session = session_of(store)
    session.begin()
    session.receive_handshake(handshake_of(master))
    for header, body in frames_of(master, 0):
        if header.offset < FILE_BYTES:
            session.receive_header(header)
            session.receive_body(memoryview(body), confirm_offset=0)
    assert store.commit_log.max_offset == FILE_BYTES
    master.commit_log.delete_first_file()
    session.begin()
    assert session.receive_handshake(handshake_of(master)) == FILE_BYTES
    assert session.is_checked


# -- what may have been confirmed ------------------------------------------------------------------------


def pair_of(tmp_path, *, shared=3, lost=2):
    """A slave that has `lost` messages which its master of the same epoch has lost; the shared end."""
    master, store = (open_small_store(tmp_path / name) for name in ("master", "slave"))
    begin_epoch(master, 1)
    shared_end = put(master, *(b"shared" * 20 for _ in range(shared)))
    follow(session_of(store), store, master)
    if lost:
        put(store, *(b"only the slave has it" for _ in range(lost)))
    return master, store, shared_end


def refusal_of(session, store, master):
    """Why the slave does not follow; its log is as it was."""
    before = log_bytes(store.commit_log), epochs_of(store)
    with pytest.raises(ReplicationError) as refused:
        follow(session, store, master)
    assert (log_bytes(store.commit_log), epochs_of(store)) == before
    return refused.value


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_slave_refuses_to_cut_what_was_confirmed(tmp_path, epoch):
    """All lost their power: the master came back with a shorter log, in its epoch or in a new one."""
    master, store, shared_end = pair_of(tmp_path)
    if epoch == 2:
        begin_epoch(master, 2)
    confirmed = store.commit_log.max_offset
    session = session_of(store, kept=Kept(lambda: confirmed))
    refusal = refusal_of(session, store, master)
    assert (refusal.reason, refusal.offset) == (CloseReason.CUT_REFUSED, shared_end)
    assert f"trioha.haAcceptCut={shared_end}" in str(refusal)
    assert f"everything before {confirmed} may have been confirmed" in str(refusal)
    # It stays out, however often it connects.
    assert refusal_of(session, store, master).reason is CloseReason.CUT_REFUSED


def test_bytes_beyond_the_confirm_offset_are_cut(tmp_path):
    master, store, shared_end = pair_of(tmp_path)
    begin_epoch(master, 2)
    put(master, b"of epoch 2")
    follow(session_of(store, kept=Kept(lambda: shared_end)), store, master)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


def test_the_cut_that_an_operator_allows_is_done_and_no_other(tmp_path):
    master, store, shared_end = pair_of(tmp_path)
    confirmed = store.commit_log.max_offset
    for allowed in (shared_end - 1, shared_end + 1):
        session = session_of(store, kept=Kept(lambda: confirmed, accepted_cut=allowed))
        assert refusal_of(session, store, master).reason is CloseReason.CUT_REFUSED
    follow(session_of(store, kept=Kept(lambda: confirmed, accepted_cut=shared_end)), store, master)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


def test_the_confirm_offset_of_this_session_counts_and_does_not_go_back(tmp_path):
    master, store, shared_end = pair_of(tmp_path)
    session = session_of(store, kept=Kept(lambda: 0))
    session.receive_confirm(1 << 40)
    session.receive_confirm(shared_end)
    begin_epoch(master, 2)
    assert refusal_of(session, store, master).reason is CloseReason.CUT_REFUSED


@pytest.mark.parametrize(
    ("epoch", "counts_acks", "is_refused"), [(1, True, True), (2, True, False), (1, False, False)]
)
def test_what_was_acknowledged_in_an_epoch_must_be_in_its_masters_log(
    tmp_path, epoch, counts_acks, is_refused
):
    """The last put may have been confirmed by an ack after which no frame came.

    A master of a later epoch was elected without these bytes, so they were not confirmed. A learner's acks
    confirm nothing.
    """
    master, _, shared_end = pair_of(tmp_path, lost=0)
    store = open_small_store(tmp_path / "other")
    session = session_of(store, kept=Kept(lambda: 0, counts_acks=counts_acks))
    session.begin()
    session.receive_handshake(handshake_of(master))
    for header, body in frames_of(master, 0):
        session.receive_header(header)
        session.receive_body(memoryview(body), confirm_offset=0)
    put(store, b"received and acknowledged")
    if epoch == 2:
        begin_epoch(master, 2)
    if is_refused:
        assert refusal_of(session, store, master).offset == shared_end
    else:
        follow(session, store, master)
        assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


def test_a_log_with_confirmed_bytes_is_not_set_aside_for_a_master_that_is_empty(tmp_path):
    """The same disk was lost whole: the master of the next epoch begins at 0."""
    _, store, _ = pair_of(tmp_path)
    empty = open_small_store(tmp_path / "empty")
    begin_epoch(empty, 2)
    confirmed = store.commit_log.max_offset
    session = session_of(store, kept=Kept(lambda: confirmed))
    refusal = refusal_of(session, store, empty)
    assert (refusal.reason, refusal.offset) == (CloseReason.CUT_REFUSED, 0)
    allowed = session_of(store, kept=Kept(lambda: confirmed, accepted_cut=0))
    assert refusal_of(allowed, store, empty).reason is CloseReason.LOG_RESTARTED


@given(st.data())
def test_whatever_is_changed_in_a_masters_stream_only_the_connection_ends(data):
    with tempfile.TemporaryDirectory() as folder, resources_closed():
        master, store = (open_small_store(Path(folder) / name) for name in ("master", "slave"))
        begin_epoch(master, 1)
        put(master, b"a" * 300, b"b" * 200)
        follow(session_of(store), store, master)
        put(store, b"orphan")
        begin_epoch(master, 2)
        put(master, b"c" * 300)
        stream = bytearray(encode_master_handshake(handshake_of(master)))
        for header, body in frames_of(master, 1, batch_bytes=data.draw(st.integers(50, 900))):
            stream += encode_transfer_header(header) + body
        for at in data.draw(st.lists(st.integers(0, len(stream) - 1), min_size=1, max_size=3)):
            stream[at] ^= data.draw(st.integers(1, 255))
        session = session_of(store)
        for _ in range(2):
            session.begin()
            decoder = MasterStreamDecoder(body_bytes_max=FILE_BYTES, joined_within_bytes=FILE_BYTES)
            decoder.feed(bytearray(stream))
            with suppress(RemoteProtocolError, ReplicationError):
                while (event := decoder.next_event()) is not None:
                    if isinstance(event, MasterHandshake):
                        session.receive_handshake(event)
                    elif isinstance(event, TransferHeader):
                        session.receive_header(event)
                    else:
                        session.receive_body(event.data, confirm_offset=event.newest.confirm_offset)
                    assert session.ack_offset <= store.commit_log.max_offset
        starts = [start for _, start in epochs_of(store)]
        assert starts == sorted(set(starts))
        before = log_bytes(store.commit_log)
    with tempfile.TemporaryDirectory() as folder, resources_closed():
        copy = open_small_store(Path(folder) / "copy")
        if before:
            # All of it is whole records.
            ReplicaAppender(copy.commit_log).append(memoryview(before))
        assert copy.commit_log.max_offset == len(before)
