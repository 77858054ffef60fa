"""Sessions that tests of the analysis share."""

from __future__ import annotations

import pytest

from tests.analysis.replays import replay_here, write_recordings
from tests.s3 import start_obstore


@pytest.fixture(autouse=True, scope="session")
def obstore_runs():
    """Descriptors of obstore's runtime are open before any test counts."""
    start_obstore()


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    """A folder with the sessions of a master and of its slave."""
    return write_recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="session")
def result(recordings):
    return replay_here(recordings)
