"""One local Spark for all tests that need it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.s3 import start_obstore
from trioha_spark import session as spark_sessions
from trioha_spark.session import spark_session


@pytest.fixture(autouse=True, scope="session")
def obstore_runs():
    """Descriptors of obstore's runtime are open before any test counts."""
    start_obstore()


@pytest.fixture(scope="session")
def spark():
    with pytest.MonkeyPatch.context() as patch:
        # Where Spark's Python finds the modules that a wheel puts into site-packages.
        folders = [str(Path(__file__).parents[2] / "spark"), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
        with spark_session("local[2]") as session:
            # The first Python job opens a connection, for accumulators, that lives as long as the session.
            session.range(1).mapInArrow(lambda batches: batches, "id long").collect()
            yield session


@pytest.fixture
def shared_spark(spark, monkeypatch):
    """Commands run on the tests' Spark."""

    @contextmanager
    def shared(master):
        yield spark

    monkeypatch.setattr(spark_sessions, "spark_session", shared)
