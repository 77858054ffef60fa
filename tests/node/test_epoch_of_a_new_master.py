"""The epoch that a new master begins in its log."""

import pytest

from tests.store.support import message, open_store
from trioha.config.broker import BrokerConfig
from trioha.controller.role import Role
from trioha.node.promotion import take_epoch


@pytest.mark.parametrize("beyond", [0, 1, 100])
def test_a_new_master_begins_its_epoch_at_the_logs_end_although_bytes_of_an_adopted_one_never_came(
    tmp_path, beyond
):
    store = open_store(tmp_path, has_epochs=True)
    store.epochs.append(1, 0)
    end = store.commit_log.append(message()).end_offset
    store.epochs.append(2, end + beyond)
    role = Role(
        is_master=True,
        epoch=3,
        broker_id=1,
        master_id=1,
        master_address=None,
        sync_state_set=frozenset({1}),
        sync_state_set_epoch=1,
    )
    take_epoch(store, role, BrokerConfig())
    assert [(entry.epoch, entry.start_offset) for entry in store.epochs.entries] == [(1, 0), (3, end)]
    # Once more, as a master that was restarted within its epoch.
    take_epoch(store, role, BrokerConfig())
    assert store.epochs.last_epoch == 3
    store.close()
