"""Slices of the log that connections send are released."""

from functools import partial

import trio
from attrs import define, evolve, field
from trio.testing import wait_all_tasks_blocked

from tests.ha.support import SETTINGS, make_master
from tests.store.support import message, open_log
from trioha.ha.connection import COPY_BYTES_MAX
from trioha.ha.frames import HEADER_BYTES, REPORT


@define
class StuckStream(trio.abc.Stream):
    """A stream of a peer that requests from offset 1 and does not read; keeps the views passed to
    `send_all`."""

    sent: list = field(factory=list)
    reports: list = field(factory=lambda: [REPORT.pack(1)])

    async def send_all(self, data):
        await trio.lowlevel.checkpoint()
        self.sent.append(data)
        if len(data) > HEADER_BYTES:
            await trio.sleep_forever()

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        if not self.reports:
            await trio.sleep_forever()
        return self.reports.pop()

    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def test_a_cancelled_send_releases_its_slice_of_the_log(tmp_path):
    log, _ = open_log(tmp_path, file_bytes=1 << 20)
    log.append(message(b"x" * 4 * COPY_BYTES_MAX))
    mapping = log.files[0].view.obj
    master, _, _ = make_master(log, settings=evolve(SETTINGS, transfer_batch_bytes=2 * COPY_BYTES_MAX))
    stream = StuckStream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(master.serve_stream, stream, host="127.0.0.1", port=50000))
        await wait_all_tasks_blocked()
        assert len(stream.sent[-1]) > COPY_BYTES_MAX
        nursery.cancel_scope.cancel()
    log.close()
    assert mapping.closed
