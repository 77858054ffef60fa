"""`trioha offsets` on stores of RocketMQ and of trioha."""

import json
from pathlib import Path

import pytest

from trioha.cli import main
from trioha.cli.times import time_option_ms
from trioha.errors import ConfigError
from trioha.metadata.history import CONSUMER_OFFSETS, HistorySettings, MetadataHistory

STORE = Path(__file__).parent.parent / "vectors/store-5.3.3/store"


def test_the_offsets_of_a_real_store_are_printed(capsys):
    assert main(["offsets", str(STORE), "--group", "vec_group", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["offsets"]
    assert {"group": "vec_group", "topic": "VecA", "queueId": 0, "offset": 41} in rows
    assert {row["group"] for row in rows} == {"vec_group"}
    assert main(["offsets", str(STORE)]) == 0
    assert "CID_RMQ_SYS_TRANS" in capsys.readouterr().out


def test_the_offsets_of_a_time_in_the_past_are_printed(tmp_path, capsys):
    now_ms = time_option_ms("2026-11-22T10:00:00Z", key="--at")
    history = MetadataHistory(
        HistorySettings(tmp_path / "config" / "history", interval_s=0), now_ms=lambda: now_ms
    )
    history.begin({CONSUMER_OFFSETS: {"offsetTable": {"T@G": {0: 5}}}})
    now_ms += 3_600_000
    history.note(CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 2}}})
    history.close()
    found = {}
    for at in ("2026-11-22T10:59:59Z", "2026-11-22T12:00:00+01:00"):
        assert main(["offsets", str(tmp_path), "--at", at, "--json"]) == 0
        found[at] = json.loads(capsys.readouterr().out)["offsets"][0]["offset"]
    assert list(found.values()) == [5, 2]
    assert main(["offsets", str(tmp_path), "--at", "2026-11-22T09:59:59Z"]) == 2
    assert "is before it" in capsys.readouterr().err


def test_a_folder_that_is_not_a_store_and_a_text_that_is_not_a_time_are_refused(tmp_path, capsys):
    assert main(["offsets", str(tmp_path)]) == 2
    assert "not a store" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="is not a time"):
        time_option_ms("yesterday", key="--at")
    assert time_option_ms("1700000000000", key="--at") == 1_700_000_000_000
