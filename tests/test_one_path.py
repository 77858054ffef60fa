"""docs/architecture.md names the files that one message goes through: a send and its ack are traced."""

import re
import time
from functools import reduce

from tests.node.wire import Wire, send_to
from tests.traced import ROOT, entered, program
from trioha.remoting.codes import ResponseCode

PAGE = ROOT / "docs/architecture.md"
SENDS = 10


def files_of_tables() -> dict[str, set[str]]:
    """The files that the page's tables name in their cells, by heading."""
    _, *sections = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)
    found = {}
    for section in sections:
        heading, _, text = section.partition("\n")
        rows = " ".join(line for line in text.splitlines() if line.startswith("|"))
        found[heading] = {f"trioha/{name}" for name in re.findall(r"`(\w+(?:/\w+)*\.(?:py|c))`", rows)}
    return found


def test_a_message_goes_through_the_files_of_the_page(start_node, tmp_path):
    traces = [tmp_path / "master.trace", tmp_path / "slave.trace"]
    settings = {"haSendHeartbeatInterval": 5000, "trioha.busyPoll": 0}
    master = start_node("master", role="SYNC_MASTER", program=program(traces[0]), **settings)
    slave = start_node("slave", slave_of=master, program=program(traces[1]), **settings)
    master.wait(connections=1)
    spans = []
    with Wire(master.listen_address) as wire:
        # The first one makes topic and queues.
        for number in range(SENDS + 1):
            began_ns = time.monotonic_ns()
            assert wire.ask(send_to("T", b"%d" % number)).code == ResponseCode.SUCCESS
            spans.append((began_ns, time.monotonic_ns()))
    slave.stop()
    master.stop()
    # What other work of the node has entered meanwhile is not on the way of each message.
    way = reduce(
        set.intersection, (set().union(*(entered(trace, *span) for trace in traces)) for span in spans[1:])
    )
    tables = files_of_tables()
    hops = tables["One message's way"]
    assert [name for name in set().union(*tables.values()) if not (ROOT / name).is_file()] == []
    assert hops - way == set()
    assert way - hops - tables["What the hops use"] - tables["What goes on meanwhile"] == set()
