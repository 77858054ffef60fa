"""One directory, opened by trioha and by real RocketMQ in turn."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import FILE_BYTES, JavaDriver
from tests.interop.logs import read_log
from tests.interop.node import TriohaNode, run_trioha, start_load

pytestmark = [pytest.mark.interop, pytest.mark.process]

StartNode = Callable[..., TriohaNode]


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_real_store_opens_triohas_directory_and_reads_every_message(
    java: JavaDriver, start_node: StartNode, tmp_path: Path, stop: str
) -> None:
    node = start_node("store", role="ASYNC_MASTER")
    loaded = node.load(400)
    loaded_large = node.load(6, size=(30000, 64000), seed=2)
    end = node.max_offset
    if stop == "clean":
        node.stop()
    else:
        node.kill()
    before = read_log(node.root, start=0, end=end, file_bytes=FILE_BYTES)

    store = java.open_store(node.root, role="ASYNC_MASTER")
    read = store.read()
    appended = store.put(50, seed=3)

    assert loaded.statuses == {"PUT_OK": 400}
    assert loaded_large.statuses == {"PUT_OK": 6}
    assert len(read.messages) == 406
    assert read.gaps() == []
    # What RocketMQ appends begins where trioha's log ended, and what trioha wrote is untouched.
    assert appended.statuses == {"PUT_OK": 50}
    assert read_log(node.root, start=0, end=end, file_bytes=FILE_BYTES) == before
    both = store.read()
    assert len(both.messages) == 456
    assert both.gaps() == []
    assert both.messages[:406] == read.messages


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_trioha_and_rocketmq_agree_on_every_record_of_a_real_store(
    java: JavaDriver, own_jvm: Callable[[str], JavaDriver], tmp_path: Path, stop: str
) -> None:
    jvm = own_jvm(java.version) if stop == "killed" else java
    store = jvm.open_store(tmp_path / "store", role="ASYNC_MASTER")
    end = store.put(300).end_offset
    read = store.read()
    if stop == "killed":
        jvm.kill()
    else:
        store.shutdown()

    verified = run_trioha("verify", store.root)
    records, blanks = inspect(store.root)

    assert verified.exit_code == 0, verified
    assert len(read.messages) == 300
    assert records == [message.record for message in read.messages]
    assert {record["bornHost"] for record in records} == {"127.0.0.1:50001", "[::1]:50002"}
    assert read.messages[-1].physical_offset + read.messages[-1].size == end
    # Records and BLANK ends lie side by side from the first byte to the end.
    sizes = {record["physicalOffset"]: record["size"] for record in [*records, *blanks]}
    assert len(blanks) == end // FILE_BYTES
    position = 0
    while position < end:
        position += sizes.pop(position)
    assert (position, sizes) == (end, {})


def inspect(store: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and BLANK records by `trioha inspect`, their bodies reduced to what the Java driver says."""
    answer = run_trioha("inspect", store, "--json")
    assert answer.exit_code == 0, answer
    everything = [json.loads(line) for line in answer.stdout.splitlines()]
    for record in everything:
        if not record.get("blank"):
            del record["magic"]
            body = base64.b64decode(record.pop("body"))
            record["bodyBytes"] = len(body)
            record["bodyCrcAsRead"] = zlib.crc32(body) & 0x7FFFFFFF
    return (
        [record for record in everything if not record.get("blank")],
        [record for record in everything if record.get("blank")],
    )


def test_trioha_goes_on_where_a_real_store_stopped(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    store = java.open_store(tmp_path / "store", role="ASYNC_MASTER")
    # Prepared messages take no queue offset (spec/store.md 5.6): who counts them leaves gaps. The last one is
    # in a queue: a 5.3.3 that believes in a clean stop forgets the record that follows it (5.4).
    first = store.put(120, prepared_every=8)
    store.shutdown()

    node = start_node("store", role="ASYNC_MASTER")
    second = node.load(120, seed=2)
    end = node.max_offset
    node.stop()
    again = java.open_store(store.root, role="ASYNC_MASTER")
    read = again.read()

    assert node.max_offset_at_start == first.end_offset
    assert second.statuses == {"PUT_OK": 120}
    assert again.max_offset == end
    assert len(read.messages) == 120 - 15 + 120
    assert read.gaps() == []


def test_a_store_that_the_other_one_has_open_is_refused(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    store = java.open_store(tmp_path / "store", role="ASYNC_MASTER")
    with pytest.raises(AssertionError, match="lock"):
        start_node("store", role="ASYNC_MASTER")
    assert store.put(1).statuses == {"PUT_OK": 1}


def test_a_node_killed_while_it_writes_leaves_a_log_that_rocketmq_and_trioha_cut_alike(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    node = start_node("store", role="ASYNC_MASTER")
    sending = start_load(node.listen_address, 100_000, size=(10, 3000))
    node.wait(max_offset=400_000)
    node.kill()
    sending.kill()
    sending.communicate()

    store = java.open_store(node.root, role="ASYNC_MASTER")
    end = store.max_offset
    store.shutdown()
    again = start_node("store", role="ASYNC_MASTER")

    assert end >= 400_000
    assert again.max_offset_at_start == end
