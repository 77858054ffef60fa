"""One directory, opened by trioha and by real RocketMQ in turn."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import JavaDriver
from tests.interop.logs import read_log, remove_files_just_made
from tests.interop.world import StartNode
from tests.node_process import FILE_BYTES, run_trioha, start_load

pytestmark = [pytest.mark.interop, pytest.mark.process]


@pytest.mark.parametrize("stop", [pytest.param("clean", marks=pytest.mark.nightly), "killed"])
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


@pytest.mark.parametrize("stop", ["clean", pytest.param("killed", marks=pytest.mark.nightly)])
def test_trioha_agrees_with_rocketmq_on_every_record_of_a_real_store_and_goes_on_where_it_stopped(
    java: JavaDriver,
    own_jvm: Callable[..., JavaDriver],
    start_node: StartNode,
    tmp_path: Path,
    stop: str,
) -> None:
    jvm = own_jvm(java.version) if stop == "killed" else java
    store = jvm.open_store(tmp_path / "store", role="ASYNC_MASTER")
    store.put(300)
    # Prepared messages take no queue offset (docs/protocol/store.md#dispatch): who counts them leaves gaps.
    # The last one is in a queue: a 5.3.3 that believes in a clean stop forgets the record that follows it
    # (docs/protocol/store.md#end-of-the-log).
    end = store.put(17, topic="WithPrepared", prepared_every=5, ipv6_born_hosts=False).end_offset
    read = store.read()
    read_other = store.read("WithPrepared")
    if stop == "killed":
        jvm.kill()
    else:
        store.shutdown()

    verified = run_trioha("verify", store.root)
    records, blanks = inspect(store.root)
    node = start_node("store", role="ASYNC_MASTER")
    loaded = node.load(120, seed=2)
    loaded_other = node.load(12, topic="WithPrepared", seed=3)
    end_of_both = node.max_offset
    node.stop()
    if stop == "killed":
        remove_files_just_made(store.root)
    again = java.open_store(store.root, role="ASYNC_MASTER")

    assert verified.exit_code == 0, verified
    assert len(read.messages) == 300
    assert len(read_other.messages) == 17 - 4
    prepared = [record for record in records if record["sysFlag"] & 0xC]
    assert len(prepared) == 4
    queued = [record for record in records if not record["sysFlag"] & 0xC]
    assert queued == [message.record for message in (*read.messages, *read_other.messages)]
    assert {record["bornHost"] for record in records} == {"127.0.0.1:50001", "[::1]:50002"}
    # Records and BLANK ends lie side by side from the first byte to the end.
    sizes = {record["physicalOffset"]: record["size"] for record in [*records, *blanks]}
    assert len(blanks) == end // FILE_BYTES
    position = 0
    while position < end:
        position += sizes.pop(position)
    assert (position, sizes) == (end, {})

    assert node.max_offset_at_start == end
    assert (loaded.statuses, loaded_other.statuses) == ({"PUT_OK": 120}, {"PUT_OK": 12})
    assert again.max_offset == end_of_both
    read_again, read_other_again = again.read(), again.read("WithPrepared")
    assert read_again.messages[:300] == read.messages
    assert len(read_again.messages) == 420
    assert len(read_other_again.messages) == 17 - 4 + 12
    assert read_again.gaps() == []
    assert read_other_again.gaps() == []


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


@pytest.mark.full
def test_a_store_that_the_other_one_has_open_is_refused(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    store = java.open_store(tmp_path / "store", role="ASYNC_MASTER")
    with pytest.raises(AssertionError, match="lock"):
        start_node("store", role="ASYNC_MASTER")
    assert store.put(1).statuses == {"PUT_OK": 1}


@pytest.mark.full
def test_a_log_that_a_killed_node_left_ends_at_the_same_byte_for_rocketmq_and_trioha(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    node = start_node("store", role="ASYNC_MASTER")
    sending = start_load(node.listen_address, 100_000, size=(10, 3000))
    node.wait(max_offset=400_000)
    node.kill()
    sending.kill()
    sending.communicate()
    shutil.copytree(node.root, tmp_path / "copy")

    real = java.open_store(tmp_path / "copy", role="ASYNC_MASTER")
    again = start_node("store", role="ASYNC_MASTER")

    assert again.max_offset_at_start >= 400_000
    assert real.max_offset == again.max_offset_at_start
    assert real.read().gaps() == []
