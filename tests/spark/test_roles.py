"""Sessions of a group of brokers on Spark: its invariants are checked by executors."""

import pytest

from tests.analysis.replays import replay_here, short_tables
from tests.node.recorded_failover import record_failovers
from tests.sessions.group_sessions import MASTER, SLAVE, Life, failover, leads, role, write_group
from trioha.cli import main
from trioha.recording.events import Kind
from trioha_analysis.state_at import open_readers
from trioha_sessions.clocks import links
from trioha_spark import results
from trioha_spark.replay import replay

pytestmark = [pytest.mark.spark, pytest.mark.full]


def planted():
    """A failover in which every invariant of groups is broken once."""
    lives = failover()
    # Broker 3 believes to be master of epoch 2, then of epoch 1.
    lives["other"] = Life(
        "5", MASTER, (role(150, MASTER, SLAVE, epoch=2, broker_id=3, log_end=500), leads(150))
    )
    lives["back"] = Life(
        "6", SLAVE, (role(160, SLAVE, MASTER, epoch=1, broker_id=3, log_end=500), leads(160))
    )
    lives["second master"] = lives["second master"].with_event(Kind.ROLE, offset=299)
    lives["second slave"] = lives["second slave"].with_event(Kind.LOG_CUT, offset=299)
    return lives


def found(tables):
    rows = tables["invariants"].to_pylist()
    return {row["invariant"]: row["violations"] for row in rows if row["session"] is None}


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_real_failover_replays_as_in_one_process_and_breaks_nothing(spark, tmp_path):
    sessions = record_failovers(tmp_path)
    tables = replay([sessions], spark=spark, range_records=300).collect()
    assert tables == short_tables(replay_here(sessions), links(open_readers([sessions])))
    assert set(found(tables).values()) == {0}
    assert all(row["checked"] for row in tables["invariants"].to_pylist() if row["session"] is None)


def test_planted_violations_are_found_by_executors(spark, tmp_path, monkeypatch):
    folder = write_group(tmp_path, planted().values())
    expected = short_tables(replay_here(folder), links(open_readers([folder])))

    def forbidden(_):
        raise AssertionError("the driver checks")

    monkeypatch.setattr(results, "check_group", forbidden)
    result = replay([folder], spark=spark, range_records=3)
    tables = result.collect()
    assert found(tables) == {
        "one-master-per-epoch": 1,
        "epochs-go-forward": 1,
        "confirmed-is-kept": 1,
        "cut-was-not-put-ok": 1,
    }
    assert tables == expected
    rows = result.violations.filter("invariant = 'cut-was-not-put-ok'").collect()
    assert [(row["session"], row["brokerId"], row["seq"]) for row in rows] == [
        ("20260101T000000.200Z-broker-a-1", 1, 2)
    ]


def test_the_command_prints_roles_and_exits_with_1_for_a_broken_group(tmp_path, shared_spark, capsys):
    folder = write_group(tmp_path, planted().values())
    assert main(["replay", str(folder)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "SLAVE to MASTER in epoch 2; the log ends at 299" in text
    for name in ("one-master-per-epoch", "epochs-go-forward", "confirmed-is-kept", "cut-was-not-put-ok"):
        assert f"{name}:" in text
