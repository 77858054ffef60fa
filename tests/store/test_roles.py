"""Stores that go on in another role, and what parts of a node attach to them."""

from attrs import evolve

from tests.store.support import message, open_store
from trioha.store.dispatch_settings import DispatchSettings


def test_a_slaves_store_goes_on_as_a_masters_with_the_next_queue_offsets(tmp_path):
    master = open_store(tmp_path / "master")
    for number in range(5):
        master.commit_log.append(message(b"%d" % number))
    data = bytes(master.commit_log.read(0, master.commit_log.max_offset))
    slave = open_store(tmp_path / "slave", dispatch=DispatchSettings(is_slave=True))
    slave.commit_log.append_records(memoryview(data), last_store_timestamp_ms=0)
    assert slave.dispatcher.position == 0
    slave.take_role(is_slave=False)
    assert slave.dispatcher.position == slave.commit_log.max_offset == len(data)
    assert not slave.commit_log.puts_blocked
    assert slave.commit_log.append(message(b"next")).queue_offset == 5
    assert not slave.dispatcher.settings.is_slave


def test_a_masters_store_goes_on_as_a_slaves(tmp_path):
    store = open_store(tmp_path / "store")
    settings = store.dispatcher.settings
    store.take_role(is_slave=True)
    assert store.dispatcher.settings == evolve(settings, is_slave=True)
    assert store.settings.dispatch == store.dispatcher.settings


def test_what_was_attached_for_a_role_is_detached_at_its_end(tmp_path):
    store = open_store(tmp_path / "store")
    called = []
    dispatcher, log = store.dispatcher, store.commit_log
    dispatcher.on_written.add(lambda _queues: called.append("always"))
    with store.attachments():
        dispatcher.on_written.add(lambda _queues: called.append("role"))
        store.checkpoints.follow_confirm_offset(lambda: 42)
        log.append(message())
        dispatcher.dispatch(log.max_offset)
        assert called == ["always", "role"]
    called.clear()
    log.append(message())
    dispatcher.dispatch(log.max_offset)
    assert called == ["always"]
    # Nothing computes it any more, but the checkpoint must not lose it.
    assert store.checkpoints.confirm_offset() == 42
