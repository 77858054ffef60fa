"""Config files of brokers, as they are read for an archive."""

from __future__ import annotations

import pytest

from tests.store.support import STORES, VECTORS
from trioha.archive.config_files import read_config_files


@pytest.mark.parametrize("name", STORES[:2])
def test_every_config_file_of_rocketmq_is_read(name: str) -> None:
    """Maps of offsets have bare integer keys, which is not JSON."""
    folder = VECTORS / name / "store" / "config"
    written = {path.name: path.read_text() for path in folder.glob("*.json")}
    assert "{0:" in written["consumerOffset.json"]
    found = read_config_files(folder.parent, bytes_max=1 << 20, sleep=lambda _: pytest.fail("read again"))
    assert {name: text for name, text in found.items() if name.endswith(".json")} == written
