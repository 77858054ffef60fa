"""A master of metadata that lies: it has more topics and groups than any memory holds."""

from __future__ import annotations

import re
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import trio

from trioha.metadata.pretty_json import encode_pretty
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.server import RemotingServer
from trioha.remoting.serving import Peer

PAGE_NAMES: Final = 8
NAME_CHARS: Final = 1 << 20
"""So a page has 8 MiB."""
PAGES_IN_A_ROW_MAX: Final = 8
"""Of one table in one copy: twice what the limit of a slave, 32 MiB, allows."""
GROWTH_KB_MAX: Final = 250 * 1024
"""Of a slave's memory at its peak, as in `tests/node/test_lying_master.py`."""
_PEAK: Final = re.compile(r"VmHWM:\s+(\d+) kB")


class Liar:
    """Answers a slave that asks for topics; it has nothing else."""

    def __init__(self) -> None:
        self.pages = 0
        """Pages that were served."""
        self.copies = 0
        """Copies that have asked for topics and then for something else."""
        self.in_a_row = 0
        """The most pages that one copy has asked for."""
        self._row = 0
        self._numbers = count()

    async def serve(self, *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        """Listen on a port of its own (the start value), until cancelled."""
        async with trio.open_nursery() as nursery:
            serve = partial(RemotingServer(self._answer).serve, host="127.0.0.1", port=0)
            (address,) = await nursery.start(serve)
            task_status.started(address)

    def _answer(self, asked: RemotingCommand, _peer: Peer) -> RemotingCommand:
        if asked.code != RequestCode.GET_ALL_TOPIC_CONFIG:
            self.copies += self._row > 0
            self._row = 0
            return response_to(asked, ResponseCode.SYSTEM_ERROR, remark="there is nothing else")
        self.pages += 1
        self._row += 1
        self.in_a_row = max(self.in_a_row, self._row)
        topic = TopicConfig("T").to_json()
        number = next(self._numbers)
        names = {f"{number}-{one}-{'x' * NAME_CHARS}": topic for one in range(PAGE_NAMES)}
        body = encode_pretty({"dataVersion": {"counter": 1}, "topicConfigTable": names}).encode()
        return response_to(asked, 0, ext_fields={"totalTopicNum": str(2**31 - 1)}, body=body)


def peak_kb(pid: int) -> int:
    """The most resident memory that a process ever had."""
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])
