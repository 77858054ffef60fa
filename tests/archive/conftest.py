"""What all tests of archives share."""

from __future__ import annotations

import obstore
import pytest
from obstore.store import MemoryStore


@pytest.fixture(autouse=True, scope="session")
def obstore_runs() -> None:
    """obstore's runtime keeps descriptors from its first request on: they are open before any test counts."""
    obstore.put(MemoryStore(), "a", b"")
