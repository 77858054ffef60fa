"""What a live node cannot write although it goes on without it: index, recording, history, backups."""

import json

import pytest
import trio

from tests.faults import disks
from tests.node_process import run_trioha, verify, wait_dispatched
from tests.waiting import wait_until
from trioha.recording.events import Kind
from trioha.recording.reader import open_session
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand
from trioha_sessions.records import read_records

pytestmark = pytest.mark.process

MESSAGES = 100


def consumed(node):
    said = run_trioha("consume", "T", "--broker", node.listen_address, "--from", "first")
    return [json.loads(line) for line in said.stdout.splitlines()]


def code_of_query(node, key):
    """What a query for the messages with this key answers."""

    async def ask():
        async with open_client(node.listen_address) as client:
            fields = {"topic": "T", "key": key, "maxNum": "3"}
            fields |= {"beginTimestamp": "0", "endTimestamp": str(2**62)}
            return (
                await client.request(
                    RemotingCommand(RequestCode.QUERY_MESSAGE, ext_fields=fields), timeout_s=15
                )
            ).code

    return trio.run(ask)


def key_of(message):
    return message["msgId"]


@pytest.mark.parametrize("restarts", [False, pytest.param(True, marks=pytest.mark.full)])
def test_without_room_for_the_index_all_messages_are_consumed_and_it_is_completed_later(
    shimmed, fault, restarts
):
    fault.write_text(disks.INDEX_FULL)
    node = shimmed(role="ASYNC_MASTER", **{"trioha.metricsPort": 0})
    assert node.load(MESSAGES, topic="T").statuses == {"PUT_OK": MESSAGES}
    wait_dispatched(node.listen_address)
    messages = consumed(node)
    assert len(messages) == MESSAGES
    # It is counted and reported, in a line for all tries, and tried again.
    wait_until(lambda: node.status().write_failures["index"] > 1)
    assert "No space left on device" in node.status().unwritten["index"]
    assert node.log_path.read_text().count("cannot be written: index") == 1
    said = run_trioha("doctor", "--json", node.listen_address).stdout
    assert "cannot-be-written" in {finding["id"] for finding in json.loads(said)["findings"]}
    assert "cannot be written: index" in run_trioha("status", "--wide", node.listen_address).stdout
    assert run_trioha("status", node.listen_address).stdout.startswith("WARNING: ")
    assert code_of_query(node, key_of(messages[-1])) == ResponseCode.QUERY_NOT_FOUND
    if restarts:
        node.stop()
        assert verify(node.root)["ok"]
        fault.unlink()
        node = shimmed(role="ASYNC_MASTER")
    else:
        fault.unlink()
    wait_until(
        lambda: code_of_query(node, key_of(messages[-1])) == ResponseCode.SUCCESS, "the index is complete"
    )
    assert code_of_query(node, key_of(messages[0])) == ResponseCode.SUCCESS
    assert node.status().unwritten == {}
    node.stop()


def test_a_disk_that_fails_to_sync_the_index_does_not_end_the_node_and_the_index_is_complete_later(
    shimmed, fault
):
    fault.write_text(disks.INDEX_FSYNC)
    node = shimmed(role="ASYNC_MASTER")
    assert node.load(MESSAGES, topic="T").statuses == {"PUT_OK": MESSAGES}
    wait_until(lambda: "index" in node.status().write_failures)
    messages = consumed(node)
    assert len(messages) == MESSAGES
    assert "index: fsync failed: Input/output error" in node.log_path.read_text()
    node.stop()
    fault.unlink()
    node = shimmed(role="ASYNC_MASTER")
    for message in (messages[0], messages[-1]):
        assert code_of_query(node, key_of(message)) == ResponseCode.SUCCESS
    assert node.status().unwritten == {}
    node.stop()
    assert verify(node.root)["ok"]


def test_folders_that_cannot_be_made_keep_no_node_from_starting_and_serving(start_node, tmp_path):
    """A recording, a history and a backup whose places are taken: files and folders of these names."""
    recordings = tmp_path / "recordings"
    recordings.write_text("no folder")
    root = tmp_path / "node"
    (root / "config").mkdir(parents=True)
    (root / "config/history").write_text("no folder")
    node = start_node("node", role="ASYNC_MASTER", **{"trioha.recordDir": recordings})
    assert node.load(10, topic="T").statuses == {"PUT_OK": 10}
    wait_dispatched(node.listen_address)
    assert len(consumed(node)) == 10
    wait_until((root / "config/topics.json").exists)
    backup = root / "config/topics.json.bak"
    backup.unlink(missing_ok=True)
    backup.mkdir()
    assert node.load(10, topic="U").statuses == {"PUT_OK": 10}
    expected = {"recording", "metadata history", "topics.json.bak"}
    wait_until(lambda: node.status().unwritten.keys() == expected, "all are named")
    assert "U" in json.loads((root / "config/topics.json").read_text())["topicConfigTable"]
    # The recording begins as soon as it can, with what the node did before.
    recordings.unlink()
    wait_until(lambda: "recording" not in node.status().unwritten)
    assert node.load(10, topic="U").statuses == {"PUT_OK": 10}
    node.stop()
    (folder,) = recordings.iterdir()
    assert "session closed" in (folder / "facts.jsonl").read_text()
    kinds = read_records(open_session(folder)).array["kind"].tolist()
    assert kinds.count(Kind.PUT) == 30
