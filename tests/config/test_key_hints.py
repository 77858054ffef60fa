"""Hints to keys that were probably meant, and keys that no broker reads any more."""

import pytest

from tests.config.loading import load
from trioha.config.rocketmq_keys import REMOVED_KEYS, RETIRED_KEYS, ROCKETMQ_KEYS, similar_key
from trioha.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("brokerNmae", (), "brokerName"),
        ("brokerNmae", ("brokerName",), None),
        ("storepathcommitlog", (), "storePathCommitLog"),
        ("storepathcommitlog", ("storePathCommitLog",), None),
        # Another folder is no correction of a folder.
        ("storePathCommitLogs", (), None),
        ("storePathConsumeQueues", ("storePathCommitLog",), None),
    ],
)
def test_a_hint_repeats_no_key_of_the_file_and_leads_to_no_other_folder(key, given, expected):
    assert similar_key(key, ROCKETMQ_KEYS, given=given) == expected


def test_keys_of_published_files_that_no_broker_reads_are_a_warning(tmp_path):
    lines = "\n".join(f"{key}=1" for key in RETIRED_KEYS)
    loaded = load(tmp_path / "broker.conf", f"brokerRole=ASYNC_MASTER\n{lines}\n")
    said = "\n".join(loaded.warnings)
    for key, instead in RETIRED_KEYS.items():
        assert f"{key}: is read by no broker" in said
        assert instead in said
    assert not RETIRED_KEYS.keys() & ROCKETMQ_KEYS


def test_a_key_that_trioha_once_had_is_a_warning_that_says_what_happens_now(tmp_path):
    lines = "\n".join(f"{key}=1" for key in REMOVED_KEYS)
    loaded = load(tmp_path / "broker.conf", f"brokerRole=ASYNC_MASTER\n{lines}\n")
    for key, now in REMOVED_KEYS.items():
        (warning,) = (each for each in loaded.warnings if key in each)
        assert warning.endswith(f"{key}: has no effect any more: {now}")
    assert not REMOVED_KEYS.keys() & (ROCKETMQ_KEYS | RETIRED_KEYS.keys())


def test_a_misspelled_key_beside_the_right_one_is_refused_without_a_hint(tmp_path):
    text = "storePathCommitLog=/data/log\nstorePathCommitLogs=/data/log\n"
    with pytest.raises(ConfigError) as refused:
        load(tmp_path / "broker.conf", text)
    assert "did you mean" not in str(refused.value)
