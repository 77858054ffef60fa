"""A topic that is deleted and made again: a slave gives up the offsets of the messages that are gone."""

import pytest

from tests.node.test_metadata_copies import QUICK, ask, commit, committed, create, messages, send, slave_of
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request

pytestmark = pytest.mark.process


def test_a_promoted_slave_skips_no_message_of_a_topic_that_was_made_again(start_node):
    def start(name, **settings):
        return start_node(name, **QUICK, **settings)

    master = start("master", role="ASYNC_MASTER")
    create(master, "Topic", "group")
    send(master, "Topic", 20)
    commit(master, "Topic", "group", 20)
    slave = slave_of(master, start, "slave")
    wait_until(lambda: committed(slave, "Topic", "group") == 20)
    ask(master.listen_address, request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "Topic"}))
    create(master, "Topic", "group")
    send(master, "Topic", 3)
    wait_until(lambda: not committed(slave, "Topic", "group"), "the old offset is given up")
    commit(master, "Topic", "group", 2)
    wait_until(lambda: committed(slave, "Topic", "group") == 2, "the new one is copied")
    slave.stop()
    promoted = start("slave", role="ASYNC_MASTER")
    assert (committed(promoted, "Topic", "group"), messages(promoted, "Topic")) == (2, 3)
