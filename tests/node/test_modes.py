"""Real processes: start of a slave, ack modes, observers, and logs that differ from the master's."""

from functools import partial

import pytest

from tests.node_process import FILE_BYTES, run_trioha, verify
from tests.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.full]


@pytest.fixture
def start(start_node):
    return partial(start_node, haHousekeepingInterval=2000)


def wait_for_verdict(slave, word):
    wait_until(lambda: word in (slave.status().client.verdict or ""), word)
    return slave.status().client.verdict


def test_a_damaged_record_is_never_acked(tmp_path, start):
    master = start("master", role="ASYNC_MASTER")
    assert master.load(300, size=(1000, 1000)).statuses == {"PUT_OK": 300}
    master.stop()
    first_file = min((tmp_path / "master" / "commitlog").iterdir())
    data = bytearray(first_file.read_bytes())
    record_bytes = int.from_bytes(data[:4])
    data[record_bytes + 500] ^= 1
    first_file.write_bytes(data)
    # A clean stop: the start looks at the last file only.
    master = start("master", role="ASYNC_MASTER")
    # A setting that trioha once had, which made a slave look at the bounds of records only.
    slave = start(
        "slave",
        slave_of=master,
        **{"trioha.haStartFrom": "earliest", "trioha.haVerify": "frame"},
    )
    slave.wait_logged("trioha.haVerify: has no effect any more: a slave checks every record")
    slave.wait_logged(f"bad record at offset {record_bytes}")
    assert slave.status().max_offset == record_bytes
    # The slave may be between two connections.
    assert all(connection.ack_offset <= record_bytes for connection in master.status().connections)


def test_a_slave_copies_the_whole_log_from_its_masters_first_file(tmp_path, start):
    master = start("master", role="ASYNC_MASTER")
    master.load(300, size=(10, 3000))
    master.stop()
    for number in range(2):
        (tmp_path / "master" / "commitlog" / f"{number * FILE_BYTES:020d}").unlink()
    master = start("master", role="ASYNC_MASTER")
    slave = start("slave", slave_of=master, **{"trioha.haStartFrom": "earliest"})
    slave.wait(max_offset=master.max_offset)
    assert slave.status().min_offset == 2 * FILE_BYTES
    slave.stop()
    master.stop()
    assert verify(tmp_path / "slave", "--against", tmp_path / "master")["ok"]


def test_a_flushed_ack_releases_producers_only_after_the_slaves_sync(tmp_path, start):
    master = start("master", role="SYNC_MASTER")
    slave = start("slave", slave_of=master, **{"trioha.haAckMode": "flushed"})
    master.wait(connections=1)
    assert master.load(300).statuses == {"PUT_OK": 300}
    status = slave.status()
    assert status.flushed_offset >= master.wait(ack_offset=master.max_offset).connections[0].ack_offset
    slave.kill()
    master.stop()
    assert verify(tmp_path / "slave", "--against", tmp_path / "master")["ok"]


def test_an_observer_receives_everything_and_releases_no_producer(tmp_path, start):
    # As long as no put of the replica takes on a busy machine.
    master = start("master", role="SYNC_MASTER", slaveTimeout=3000)
    observer = start("observer", slave_of=master, **{"trioha.haRole": "observer"})
    master.wait(connections=1)
    assert master.load(20, concurrency=20).statuses == {"FLUSH_SLAVE_TIMEOUT": 20}
    observer.wait(max_offset=master.max_offset)
    replica = start("replica", slave_of=master, brokerId=2)
    master.wait(connections=2, ack_offset=master.max_offset)
    assert master.load(50).statuses == {"PUT_OK": 50}
    observer.wait(max_offset=master.max_offset)
    observer.stop()
    replica.stop()
    master.stop()
    assert verify(tmp_path / "observer", "--against", tmp_path / "master")["ok"]


def test_a_slave_takes_over_and_the_old_master_comes_back_only_if_its_log_is_a_prefix(tmp_path, start):
    old = start("one", role="SYNC_MASTER")
    slave = start("two", slave_of=old)
    old.wait(connections=1)
    assert old.load(100).statuses == {"PUT_OK": 100}
    old.stop()
    slave.stop()
    # Promotion by hand: the same store, now as master; producers go on.
    new = start("two", role="ASYNC_MASTER")
    assert new.load(100).statuses == {"PUT_OK": 100}
    back = start("one", slave_of=new)
    back.wait(max_offset=new.max_offset)
    assert not back.status().client.verdict
    # Now the old master takes messages on its own, and so does the new one: two histories.
    back.stop()
    alone = start("one", role="ASYNC_MASTER")
    common_offset = alone.max_offset
    alone.load(5)
    alone.stop()
    new.load(30)
    back = start("one", slave_of=new)
    verdict = wait_for_verdict(back, "DIVERGED")
    offset = int(verdict.rsplit(" ", 1)[1])
    assert offset >= common_offset
    difference = verify(tmp_path / "one", "--against", tmp_path / "two", "--prefix")
    assert difference["firstDifference"] == offset
    back.stop()
    resync = start("one", slave_of=new, **{"trioha.haGapPolicy": "resync"})
    resync.wait(max_offset=new.max_offset)
    resync.stop()
    new.stop()
    assert verify(tmp_path / "one", "--against", tmp_path / "two")["ok"]
    (aside,) = (tmp_path / "one").glob("commitlog.diverged-*")
    assert verify(aside)["ok"]


def test_a_slave_ahead_of_its_master_is_reported_and_nothing_is_overwritten(tmp_path, start):
    master = start("master", role="ASYNC_MASTER")
    slave = start("slave", slave_of=master)
    master.load(50)
    slave.wait(max_offset=master.max_offset)
    slave.stop()
    master.stop()
    ahead = start("slave", role="ASYNC_MASTER")
    ahead.load(10, size=(10, 50))
    end_offset = ahead.max_offset
    ahead.stop()
    master = start("master", role="ASYNC_MASTER")
    slave = start("slave", slave_of=master)
    verdict = wait_for_verdict(slave, "AHEAD")
    assert str(end_offset) in verdict
    assert slave.max_offset == end_offset
    assert f"{slave.listen_address}  DIVERGED" in run_trioha("status", slave.listen_address).stdout
    slave.stop()
    master.stop()
