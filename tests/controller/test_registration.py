"""A registration that fails at each of its steps, and goes on there."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.controller.scripted import ScriptedControllers
from tests.controller.support import running_agent
from trioha.controller.agent_status import AgentState
from trioha.errors import StoreError
from trioha.remoting.codes import RequestCode as Code
from trioha.remoting.codes import ResponseCode

STEPS = (
    Code.CONTROLLER_GET_NEXT_BROKER_ID,
    Code.CONTROLLER_APPLY_BROKER_ID,
    Code.CONTROLLER_REGISTER_BROKER,
    Code.CONTROLLER_ELECT_MASTER,
)
TEMPORARY = "brokerIdentity-temp"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("failing", "state", "files"),
    [
        (STEPS[0], AgentState.NO_ID, []),
        (STEPS[1], AgentState.APPLYING, [TEMPORARY]),
        (STEPS[2], AgentState.REGISTERING, ["brokerIdentity"]),
        (STEPS[3], AgentState.FOLLOWING, ["brokerIdentity"]),
    ],
)
async def test_registration_goes_on_at_the_step_that_failed(
    tmp_path: Path,
    autojump_clock: MockClock,
    *,
    failing: Code,
    state: AgentState,
    files: list[str],
    restarts: bool,
) -> None:
    async with trio.open_nursery() as nursery:
        controllers = ScriptedControllers(nursery, "c0:1")
        controllers.refuse[failing] = ResponseCode.SYSTEM_ERROR
        async with running_agent(tmp_path, controllers) as running:
            await trio.sleep(10)
            assert running.agent.role is None
            assert running.agent.status().state is state
            assert names_in(tmp_path) == files
            if not restarts:
                controllers.refuse.clear()
                await trio.sleep(3)
                assert running.agent.role is not None
        controllers.refuse.clear()
        async with running_agent(tmp_path, controllers) as again:
            await trio.sleep(3)
            role = again.agent.role
            assert (role.is_master, role.epoch, role.broker_id) == (True, 1, 1)
        assert names_in(tmp_path) == ["brokerIdentity"]
        # No step that had succeeded is taken again, but for the last one before the failure.
        done = STEPS[: STEPS.index(failing)]
        assert [controllers.requests.count(code) for code in done[:2]] == [1] * len(done[:2])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("unwritable", [TEMPORARY, "brokerIdentity"])
async def test_an_identity_that_cannot_be_written_ends_the_broker_and_its_next_start_goes_on(
    tmp_path: Path, autojump_clock: MockClock, unwritable: str
) -> None:
    async with trio.open_nursery() as nursery:
        controllers = ScriptedControllers(nursery, "c0:1")
        obstacle = tmp_path / unwritable

        async def live() -> None:
            async with running_agent(tmp_path, controllers):
                # A write ends in a rename, and no file takes the place of a folder.
                obstacle.mkdir()
                await trio.sleep(5)

        with pytest.RaisesGroup(StoreError, flatten_subgroups=True):
            await live()
        assert Code.CONTROLLER_REGISTER_BROKER not in controllers.requests
        obstacle.rmdir()
        async with running_agent(tmp_path, controllers) as again:
            await trio.sleep(3)
            assert again.agent.broker_id == 1
            assert again.agent.role is not None
        assert names_in(tmp_path) == ["brokerIdentity"]
        nursery.cancel_scope.cancel()
