"""Node processes that move to another address, and that outlive their controllers."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.interop.controller import eventually
from tests.node.test_controller_mode import BOTH, Controller, Member, scripted_controller

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.timeout(300)]
Join = Callable[[str, Controller], Member]


@pytest.fixture
def join(tmp_path):
    with ExitStack() as members:

        def start(name: str, controller: Controller) -> Member:
            member = Member(tmp_path, name, controller, slaveTimeout=500)
            members.callback(member.end)
            return member

        yield start


def wait_for_address(controller: Controller, member: Member) -> None:
    eventually(
        f"the controllers have {member.address}",
        lambda: True if member.address in controller.group.addresses.values() else None,
        logs=member.node.log,
    )


def test_a_node_that_moved_to_another_address_keeps_its_id_and_its_role(join):
    with scripted_controller() as controller:
        first = join("first", controller)
        first.stored(10)
        second = join("second", controller)
        controller.wait_for_set(BOTH)
        first.node.stop()
        # A store with its name at another port is the same broker.
        moved = join("first", controller)
        assert moved.address != first.address
        wait_for_address(controller, moved)
        moved.stored(10)
        assert controller.group.addresses[1] == moved.address
        assert (controller.group.master_id, controller.group.epoch) == (1, 1)
        # Its slave finds it there.
        controller.wait_for_set(BOTH)
        moved.stored(10)
        second.node.wait(max_offset=moved.epochs().max_offset)
        assert second.log_bytes() == moved.log_bytes()


def test_a_pair_takes_writes_without_controllers_as_long_as_it_is_whole(join):
    with scripted_controller() as controller:
        first = join("first", controller)
        first.stored(10)
        second = join("second", controller)
        controller.wait_for_set(BOTH)
    first.stored(20)
    second.node.wait(max_offset=first.epochs().max_offset)
    assert second.log_bytes() == first.log_bytes()
    assert first.epochs().broker_id == 0
    # Nobody can agree to a smaller set.
    second.node.kill()
    assert first.node.load(3).statuses == {"FLUSH_SLAVE_TIMEOUT": 3}
