"""Records are sent at once to a slave that is in step, over real sockets."""

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from tests.ha.support import SETTINGS, Peer, ended, listening, make_master
from tests.store.support import message, open_log
from trioha.recording.events import CloseReason, Kind


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    return log


@asynccontextmanager
async def slave_of(master):
    async with listening(master) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield Peer(stream)


async def in_step(log, peer):
    await peer.report(1)
    offset, body = await peer.next_frame()
    await peer.report(offset + len(body))
    await trio.sleep(0.05)


async def test_push_sends_before_the_writer_task_runs(log):
    master, _, events = make_master(log)
    async with slave_of(master) as peer:
        await in_step(log, peer)
        stored = log.append(message())
        master.push(0)
        assert events.of(Kind.TRANSFER)[-1][2] == stored.physical_offset
        assert await peer.next_frame() == (
            stored.physical_offset,
            bytes(log.read(stored.physical_offset, 9999)),
        )
        # The writer task finds nothing left to send.
        await trio.sleep(0.05)
        assert len(events.of(Kind.TRANSFER)) == 2


async def one_pushed_one_not(log, master, peer):
    """Two records: the first one is sent and not acknowledged."""
    await in_step(log, peer)
    first = log.append(message())
    master.push(0)
    return first, log.append(message())


async def test_nothing_is_pushed_while_a_frame_is_unacknowledged(log):
    master, _, events = make_master(log)
    async with slave_of(master) as peer:
        first, second = await one_pushed_one_not(log, master, peer)
        master.push(0)
        assert events.of(Kind.TRANSFER)[-1][2] == first.physical_offset
        assert (await peer.next_frame())[0] == first.physical_offset
        # It waits for the writer task, not for the ack.
        assert (await peer.next_frame())[0] == second.physical_offset


async def test_a_slave_in_step_is_pushed_to_while_a_frame_is_unacknowledged(log):
    master, _, events = make_master(log)
    async with slave_of(master) as peer:
        first, second = await one_pushed_one_not(log, master, peer)
        master.push(first.size - 1)
        assert events.of(Kind.TRANSFER)[-1][2] == first.physical_offset
        master.push(first.size)
        assert events.of(Kind.TRANSFER)[-1][2] == second.physical_offset
        assert [(await peer.next_frame())[0] for _ in range(2)] == [
            first.physical_offset,
            second.physical_offset,
        ]
        await peer.report(log.max_offset)
        await trio.sleep(0.05)
        (connection,) = master._connections.values()
        assert connection.progress.ack_offset == log.max_offset


async def test_a_push_without_new_bytes_sends_nothing(log):
    master, _, events = make_master(log)
    async with slave_of(master) as peer:
        master.push(0)
        await in_step(log, peer)
        master.push(0)
        assert len(events.of(Kind.TRANSFER)) == 1


async def test_a_push_larger_than_the_socket_accepts_arrives_complete(tmp_path):
    log, _ = open_log(tmp_path, file_bytes=1 << 25)
    log.append(message())
    master, _, _ = make_master(log, settings=evolve(SETTINGS, transfer_batch_bytes=4_000_000))
    async with slave_of(master) as peer:
        await in_step(log, peer)
        stored = log.append(message(body=bytes(range(256)) * 12_000))
        master.push(0)
        (connection,) = master._connections.values()
        assert not connection._outbox.is_empty
        later = log.append(message())
        master.push(0)
        offset, body = await peer.next_frame()
        assert (offset, body) == (stored.physical_offset, bytes(log.read(offset, stored.size)))
        assert (await peer.next_frame())[0] == later.physical_offset


async def test_a_due_heartbeat_follows_a_push_that_the_socket_did_not_accept(tmp_path):
    log, _ = open_log(tmp_path, file_bytes=1 << 25)
    log.append(message())
    master, _, _ = make_master(log, settings=evolve(SETTINGS, transfer_batch_bytes=4_000_000))
    async with slave_of(master) as peer:
        await in_step(log, peer)
        (wait,) = log.appended.waits
        # The heartbeat is due, but the writer task has not run yet.
        wait.end()
        stored = log.append(message(body=bytes(range(256)) * 12_000))
        master.push(0)
        (connection,) = master._connections.values()
        assert not connection._outbox.is_empty
        with trio.fail_after(5):
            offset, body = await peer.next_frame()
            assert (offset, len(body)) == (stored.physical_offset, stored.size)
            assert body == bytes(log.read(offset, stored.size))
            assert await peer.next_frame() == (stored.end_offset, b"")
            later = log.append(message())
            assert (await peer.next_frame())[0] == later.physical_offset


async def test_nothing_is_pushed_of_a_restarted_log(log):
    master, _, events = make_master(log)
    async with slave_of(master) as peer:
        await in_step(log, peer)
        sent = len(events.of(Kind.TRANSFER))
        (connection,) = master._connections.values()
        end_offset = log.max_offset
        log.archive(log.directory.with_name("aside"))
        while log.max_offset <= end_offset:
            log.append(message())
        master.push(0)
        await ended(connection)
        assert len(events.of(Kind.TRANSFER)) == sent
        assert connection.progress.close_reason is CloseReason.LOG_RESTARTED


async def test_a_push_on_a_broken_connection_ends_it(log):
    master, _, _ = make_master(log)
    async with slave_of(master) as peer:
        await in_step(log, peer)
        (connection,) = master._connections.values()
        connection._stream._socket.shutdown(1)
        log.append(message())
        master.push(0)
        assert connection.progress.close_reason is CloseReason.IO_ERROR
        await ended(connection)
