"""The files of a broker's id, with a crash between any two system calls that change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioha.controller.identity import Application, IdentityFiles
from trioha.errors import StoreError

RECORDED = Path(__file__).parents[1] / "vectors" / "controller-5.3.3" / "brokerIdentity"
APPLICATION = Application(broker_id=1, check_code="127.0.0.1:37923;1795353186602")


def opened(folder: Path) -> IdentityFiles:
    return IdentityFiles.open(folder / "brokerIdentity", cluster_name="check", broker_name="broker-x")


def test_a_granted_id_is_written_as_a_real_broker_writes_it(tmp_path: Path) -> None:
    files = opened(tmp_path)
    assert (files.broker_id, files.application) == (None, None)
    files.apply_for(APPLICATION)
    temporary = tmp_path / "brokerIdentity-temp"
    assert temporary.read_bytes() == b"check#broker-x#1#127.0.0.1:37923;1795353186602"
    assert files.grant() == 1
    assert (tmp_path / "brokerIdentity").read_bytes() == RECORDED.read_bytes()
    assert not temporary.exists()
    assert opened(tmp_path).broker_id == 1


def test_an_application_survives_a_restart_until_it_is_dropped(tmp_path: Path) -> None:
    opened(tmp_path).apply_for(APPLICATION)
    files = opened(tmp_path)
    assert (files.broker_id, files.application) == (None, APPLICATION)
    files.drop_application()
    assert opened(tmp_path).application is None
    assert list(tmp_path.iterdir()) == []


def test_an_identity_beside_an_application_counts_and_ends_the_application(tmp_path: Path) -> None:
    opened(tmp_path).apply_for(Application(broker_id=2, check_code="a:1;2"))
    (tmp_path / "brokerIdentity").write_bytes(RECORDED.read_bytes())
    files = opened(tmp_path)
    assert (files.broker_id, files.application) == (1, None)
    assert [path.name for path in tmp_path.iterdir()] == ["brokerIdentity"]


@pytest.mark.parametrize("text", ["", "check#broker-x", "check#other#1#a:1;2", "check#broker-x#one#a:1;2"])
def test_a_damaged_application_is_dropped(tmp_path: Path, text: str) -> None:
    (tmp_path / "brokerIdentity-temp").write_text(text)
    files = opened(tmp_path)
    assert (files.broker_id, files.application) == (None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "check#broker-x", "check#broker-x#0", "check#broker-x#-1", "check#broker-x#1#2"]
)
def test_a_damaged_identity_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "brokerIdentity").write_text(text)
    with pytest.raises(StoreError, match="brokerIdentity"):
        opened(tmp_path)


def test_the_identity_of_another_broker_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity").write_text("check#broker-y#1")
    with pytest.raises(StoreError, match="belongs to broker-y of cluster check, but brokerName is broker-x"):
        opened(tmp_path)


class _CrashError(Exception):
    pass


def test_a_crash_at_any_change_of_the_files_leaves_a_usable_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step may be the last: what is found afterwards is no id, the application, or the id."""
    left = 0

    def crashing(name: str) -> None:
        real = getattr(Path, name)

        def step(self: Path, *arguments: object, **options: object) -> object:
            nonlocal left
            if left == 0:
                raise _CrashError
            left -= 1
            return real(self, *arguments, **options)

        monkeypatch.setattr(Path, name, step)

    for name in ("replace", "unlink"):
        crashing(name)
    states = []
    for steps in range(20):
        folder = tmp_path / str(steps)
        folder.mkdir()
        left, ended = steps, True
        try:
            files = opened(folder)
            files.apply_for(APPLICATION)
            files.grant()
        except _CrashError:
            ended = False
        left = 100
        found = opened(folder)
        assert found.broker_id in {None, 1}
        assert found.application in {None, APPLICATION}
        states.append((found.broker_id, found.application is not None))
        if ended:
            break
        if found.broker_id is None:
            if found.application is None:
                found.apply_for(APPLICATION)
            assert found.grant() == 1
    assert states[0] == (None, False)
    assert (None, True) in states
    assert states[-1] == (1, False)
    assert states.count((1, False)) >= 2, "a crash between the id and the removal of the application"
