"""The idle timeout of a connection."""

import socket

import trio

from trioha.net.housekeeping import Housekeeping


async def expired_after(housekeeping, reader=trio.sleep_forever):
    """When a connection with this reader ends, in s from now."""
    started = trio.current_time()
    async with trio.open_nursery() as tasks:
        tasks.start_soon(reader)
        await housekeeping.expired()
        tasks.cancel_scope.cancel()
    return trio.current_time() - started


async def test_silence_ends_the_connection_at_the_deadline(autojump_clock):
    assert await expired_after(Housekeeping(idle_timeout_s=20)) == 20.0


async def test_each_receive_moves_the_deadline(autojump_clock):
    housekeeping = Housekeeping(idle_timeout_s=20)

    async def hear():
        for _ in range(3):
            await trio.sleep(15)
            housekeeping.deadline_s = trio.current_time() + 20
        await trio.sleep_forever()

    assert await expired_after(housekeeping, hear) == 65.0


async def test_what_came_while_the_process_was_stopped_counts(autojump_clock):
    """SIGCONT: the deadline has passed, and the peer's bytes wait. Which task runs first is chance."""
    for _ in range(30):
        housekeeping = Housekeeping(idle_timeout_s=20)

        async def receive(housekeeping=housekeeping):
            await trio.sleep(20)
            housekeeping.deadline_s = trio.current_time() + 20
            await trio.sleep_forever()

        assert await expired_after(housekeeping, receive) == 40.0


async def test_what_came_counts_also_if_the_first_look_for_it_was_interrupted(autojump_clock, monkeypatch):
    """SIGCONT in epoll_wait: Python repeats it only within its time limit, which has passed by then."""
    manager = type(trio._core._run.GLOBAL_RUN_CONTEXT.runner.io_manager)
    look = manager.get_events
    for _ in range(30):
        await hear_after_an_interruption(manager, look, monkeypatch)


async def hear_after_an_interruption(manager, look, monkeypatch):
    housekeeping = Housekeeping(idle_timeout_s=20)
    began_s = trio.current_time()
    ours, theirs = socket.socketpair()

    def find_nothing(self, timeout_s):
        if trio.current_time() < began_s + 20:
            return look(self, timeout_s)
        interrupted.undo()
        theirs.send(b"x")
        return []

    async def receive():
        await trio.lowlevel.wait_readable(ours)
        ours.recv(1)
        housekeeping.deadline_s = trio.current_time() + 20
        await trio.sleep_forever()

    with ours, theirs, monkeypatch.context() as interrupted:
        ours.setblocking(False)
        interrupted.setattr(manager, "get_events", find_nothing)
        assert await expired_after(housekeeping, receive) == 40.0
