import pytest


@pytest.fixture
def conf(tmp_path):
    """The path of a broker.conf."""
    return tmp_path / "broker.conf"
