"""What the tests of the monitor share."""

import pytest


@pytest.fixture(autouse=True)
def _state_folder_of_its_own(tmp_path_factory, monkeypatch):
    """A monitor neither reads nor writes what the user of this machine chose."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
