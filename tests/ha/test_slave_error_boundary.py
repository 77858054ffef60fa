"""An exception in a connection to the master ends that connection only: the slave connects again."""

import errno
import ssl
from itertools import count

import pytest
import trio
from trio.testing import memory_stream_pair

import trioha.ha.client as connection_module
from tests.descriptors import close_after_test
from tests.ha.support import Dialer, Events, make_master, make_slave, running, settled
from tests.store.support import FILE_BYTES, log_bytes, message, open_log
from trioha.config.keys.ha import AckMode, StartFrom
from trioha.errors import StoreError
from trioha.ha.client import DefaultHaClient
from trioha.ha.frames import TransferDecoder
from trioha.ha.link import LinkVerdict
from trioha.ha.meter import RateMeter
from trioha.ha.replication_session import ReplicationSession, ReplicationSettings
from trioha.ha.slave import BACK_OFF_MAX_S
from trioha.net.housekeeping import Housekeeping
from trioha.net.outbox import Outbox
from trioha.recording.events import CloseReason, HaState, Kind
from trioha.store.commit_log import CommitLog
from trioha.store.record_starts import RecordStarts
from trioha.store.replica import ReplicaAppender

ALL = ReplicationSettings(start=StartFrom.EARLIEST)
PLANTED = [
    (TransferDecoder, "feed"),
    (TransferDecoder, "next_event"),
    (ReplicaAppender, "append"),
    (ReplicaAppender, "discard"),
    (ReplicationSession, "begin"),
    (ReplicationSession, "receive_header"),
    (ReplicationSession, "receive_body"),
    (CommitLog, "append_records"),
    (RecordStarts, "note_all"),
    (RateMeter, "add"),
    (Housekeeping, "expired"),
    (DefaultHaClient, "_report"),
    (DefaultHaClient, "_report_flushed"),
    (DefaultHaClient, "_write_reports"),
    (DefaultHaClient, "_receive"),
    (DefaultHaClient, "_close"),
    (LinkVerdict, "answered"),
    (Outbox, "put"),
    (connection_module, "encode_report"),
    (connection_module, "receive_into"),
    (connection_module, "local_address"),
    (Events, "emit"),
    (Events, "fact"),
]
"""Every parser, handler and port of a connection."""


def plant(patch, place, name, *, failing, error):
    """Let the calls of a function with numbers in `failing` raise `error`; returns the list of those
    numbers."""
    real = getattr(place, name)
    numbers = count()
    raised = []

    def call(*arguments, **options):
        number = next(numbers)
        if number in failing:
            raised.append(number)
            raise error
        return real(*arguments, **options)

    patch.setattr(place, name, call)
    return raised


class ServingDialer(Dialer):
    """Connects to a master of this process."""

    def __init__(self, master, nursery):
        super().__init__()
        self.master = master
        self.nursery = nursery

    async def __call__(self, _dialing):
        await trio.lowlevel.checkpoint()
        self.times.append(trio.current_time())
        near, far = memory_stream_pair()
        self.nursery.start_soon(self._serve, far)
        return near

    async def _serve(self, stream):
        await self.master.serve_stream(stream, host="127.0.0.1", port=len(self.times))


@pytest.fixture
def master_log(tmp_path):
    log = close_after_test(open_log(tmp_path / "master")[0])
    for number in range(40):
        log.append(message(bytes([number]) * 4000))
    return log


@pytest.fixture
def log(tmp_path):
    return close_after_test(open_log(tmp_path / "slave")[0])


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        *((place, name, RuntimeError("planted")) for place, name in PLANTED),
        (ReplicaAppender, "append", MemoryError()),
        (connection_module, "receive_into", OSError(errno.EMFILE, "no more")),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_a_bug_anywhere_ends_the_connection_and_the_next_one_continues(
    *, log, master_log, autojump_clock, monkeypatch, place, name, error
):
    raised = plant(monkeypatch, place, name, failing={0, 2, 3, 9}, error=error)
    master, _, _ = make_master(master_log)
    async with trio.open_nursery() as nursery:
        dialer = ServingDialer(master, nursery)
        slave, _, _ = make_slave(log, dialer=dialer, ack_mode=AckMode.FLUSHED, replication=ALL)
        nursery.start_soon(slave.run)

        async def flush():
            while True:
                await log.appended.reached(log.flushed.offset + 1)
                log.flushed.advance(log.max_offset)

        nursery.start_soon(flush)
        with trio.fail_after(600):
            while log.max_offset < master_log.max_offset or slave.status().reported_offset < log.max_offset:
                master_log.append(message(b"more")) if len(dialer.times) > 20 else None
                await trio.sleep(0.01)
        # Without faults it stays connected.
        await trio.sleep(60)
        assert slave.state is HaState.TRANSFER
        nursery.cancel_scope.cancel()
    assert raised
    assert log_bytes(log) == log_bytes(master_log)
    counted = slave.boundary.bugs if isinstance(error, RuntimeError) else slave.boundary.shortages
    assert 1 <= counted <= len(raised)


async def test_a_repeated_bug_is_logged_once_a_minute_with_growing_back_off(
    log, master_log, autojump_clock, monkeypatch, capsys
):
    plant(
        monkeypatch, ReplicationSession, "receive_body", failing=range(10_000), error=RuntimeError("planted")
    )
    master, _, _ = make_master(master_log)
    async with trio.open_nursery() as nursery:
        dialer = ServingDialer(master, nursery)
        slave, _, _ = make_slave(log, dialer=dialer)
        monkeypatch.setattr(slave.boundary, "_clock", trio.current_time)
        nursery.start_soon(slave.run)
        await trio.sleep(300)
        assert (slave.last_close_reason, slave.state) == (CloseReason.INTERNAL_ERROR, HaState.READY)
        nursery.cancel_scope.cancel()
    pauses = [round(after - before, 3) for before, after in zip(dialer.times, dialer.times[1:], strict=False)]
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert set(pauses[6:]) == {BACK_OFF_MAX_S}
    assert slave.boundary.bugs == len(dialer.times)
    assert capsys.readouterr().out.count("closed by a fault of this program") == 5


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("no listener"),
        OSError(-2, "Name or service not known"),
        UnicodeError("label empty or too long"),
        ssl.SSLError(1, "wrong version number"),
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError("can't start new thread"),
        ValueError("planted"),
    ],
)
async def test_a_dial_that_fails_in_any_way_is_repeated(log, autojump_clock, monkeypatch, error):
    dialer = Dialer()
    slave, _, _ = make_slave(log, dialer=dialer)
    raised = plant(monkeypatch, slave, "_connect", failing={0, 1, 2}, error=error)
    async with running(slave, dialer):
        await trio.sleep(5)
        assert (len(raised), slave.state) == (3, HaState.TRANSFER)


async def test_a_shortage_that_trio_wraps_is_counted_as_one(log, autojump_clock, monkeypatch):
    error = OSError("all attempts to connect to master:10912 failed")
    error.__cause__ = ExceptionGroup("tried", [OSError(errno.EMFILE, "Too many open files")])
    slave, _, _ = make_slave(log)
    plant(monkeypatch, slave, "_connect", failing={0}, error=error)
    async with running(slave):
        await trio.sleep(1)
    assert (slave.boundary.shortages, slave.boundary.bugs) == (1, 0)


async def test_a_disk_error_at_the_start_of_a_connection_ends_that_connection(
    log, master_log, autojump_clock, monkeypatch
):
    refusal = StoreError("cannot be deleted: Read-only file system", path=log.directory)
    plant(monkeypatch, ReplicationSession, "begin", failing={0, 1}, error=refusal)
    master, _, _ = make_master(master_log)
    async with trio.open_nursery() as nursery:
        slave, _, events = make_slave(log, dialer=ServingDialer(master, nursery), replication=ALL)
        nursery.start_soon(slave.run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert [event[5] for event in events.of(Kind.REFUSED)] == [CloseReason.STORE_ERROR] * 2
    assert log_bytes(log) == log_bytes(master_log)
    assert slave.boundary.bugs == 0


# -- what a master may claim -------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63 - FILE_BYTES, 2**62 // FILE_BYTES * FILE_BYTES])
async def test_a_log_at_the_end_of_all_offsets_is_refused_or_accepted_and_is_not_a_bug(
    log, autojump_clock, offset
):
    slave, dialer, _ = make_slave(log)
    async with running(slave, dialer):
        for number in range(3):
            await trio.sleep(6)
            peer = dialer.peers[-1]
            await peer.frame(offset)
            await peer.frame(offset, b"x" * 200)
            await settled()
            assert number + 1 <= len(dialer.peers)
    assert slave.boundary.bugs == 0
    assert log.max_offset in {0, offset}


@pytest.mark.parametrize(("message_bytes_max", "limit"), [(1000, 4 << 20), (6 << 20, 6 << 20)])
async def test_a_record_longer_than_any_legal_one_is_refused_before_it_is_buffered(
    tmp_path, autojump_clock, message_bytes_max, limit
):
    file_bytes = 8 << 20
    long = close_after_test(
        open_log(tmp_path / "master", file_bytes=file_bytes, message_bytes_max=file_bytes)[0]
    )
    log = close_after_test(
        open_log(tmp_path / "slave", file_bytes=file_bytes, message_bytes_max=message_bytes_max)[0]
    )
    # The slave buffers parts of the longest legal record; one byte more is refused at the record's head.
    overhead = 91 + len("Orders")
    fits = long.append(message(b"x" * (limit + (64 << 10) - overhead)))
    assert fits.size == limit + (64 << 10)
    head = bytearray(long.read(0, 200))
    head[:4] = (fits.size + 1).to_bytes(4, "big")
    slave, dialer, events = make_slave(log)
    async with running(slave, dialer) as peer:
        await peer.frame(0, bytes(head))
        await settled()
        assert [event[5] for event in events.of(Kind.REFUSED)] == [CloseReason.BAD_RECORD]
        await trio.sleep(1)
        step = 1 << 20
        for start in range(0, fits.size, step):
            await dialer.peers[-1].frame(start, bytes(long.read(start, step)))
        await settled()
    assert log.max_offset == fits.end_offset


def test_the_refusal_of_a_long_record_names_the_key(tmp_path):
    from trioha.store.record import RecordError

    log = close_after_test(open_log(tmp_path / "slave", file_bytes=8 << 20)[0])
    source = close_after_test(open_log(tmp_path / "master", file_bytes=8 << 20)[0])
    source.append(message())
    head = bytearray(source.read(0, 90))
    head[:4] = (5 << 20).to_bytes(4, "big")
    with pytest.raises(RecordError, match="raise maxMessageSize here"):
        ReplicaAppender(log).append(memoryview(head))
