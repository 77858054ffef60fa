"""Masters whose first log files are deleted, and with them epochs."""

import trio

from tests.ha.autoswitch.support import begin_epoch, epochs_of, open_epoch_store, put
from tests.ha.autoswitch.test_pair import equal, following
from tests.store.support import FILE_BYTES, log_bytes


def fill_file(store, body):
    """Put messages of 4,000 bytes and more, as long as the log's last file has room for another."""
    log = store.commit_log
    put(store, body * 500)
    while log.max_offset % FILE_BYTES < FILE_BYTES - 5000:
        put(store, body * 500)


async def test_masters_change_between_a_log_with_all_its_files_and_one_without_the_first(
    tmp_path, autojump_clock
):
    stores = {number: open_epoch_store(tmp_path / str(number)) for number in (1, 2, 3)}
    begin_epoch(stores[1], 1)
    fill_file(stores[1], b"first---")
    begin_epoch(stores[1], 2)
    fill_file(stores[1], b"second--")
    async with following(stores, 1, 2):
        await equal(stores, 1, 2)
    log = stores[1].commit_log
    log.flushed.advance(log.max_offset)
    log.delete_first_file()
    stores[1].truncate_epochs()
    begins = epochs_of(stores[1])
    assert begins == epochs_of(stores[2])[1:]

    # A newcomer has what is left, epochs included.
    async with following(stores, 1, 3):
        await equal(stores, 1, 3)
    assert stores[3].commit_log.min_offset == FILE_BYTES
    assert epochs_of(stores[3]) == begins

    # The one with all files becomes master: the others follow it from where they are.
    begin_epoch(stores[2], 3)
    fill_file(stores[2], b"third---")
    async with following(stores, 2, 1, 3):
        await all_follow(stores, 2, 1, 3)
    assert len(log_bytes(stores[2].commit_log)) > len(log_bytes(log))

    # And one without the first file becomes its master.
    begin_epoch(stores[3], 4)
    fill_file(stores[3], b"fourth--")
    async with following(stores, 3, 1, 2):
        await all_follow(stores, 3, 1, 2)
    assert [epoch for epoch, _ in epochs_of(stores[2])] == [1, 2, 3, 4]
    assert stores[2].commit_log.min_offset == 0


async def all_follow(stores, master_id, *slave_ids):
    """Wait until the slaves have the master's log from the later of both starts on, and its epochs."""
    master = stores[master_id]
    end = master.commit_log.max_offset
    with trio.fail_after(60):
        for number in slave_ids:
            slave = stores[number]
            while slave.commit_log.max_offset != end:  # noqa: ASYNC110 - bounded
                await trio.sleep(0.1)
            start = max(slave.commit_log.min_offset, master.commit_log.min_offset)
            held, of_master = (
                log_bytes(store.commit_log)[start - store.commit_log.min_offset :]
                for store in (slave, master)
            )
            assert held == of_master
            count = min(len(epochs_of(slave)), len(epochs_of(master)))
            assert epochs_of(slave)[-count:] == epochs_of(master)[-count:]
