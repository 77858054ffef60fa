"""The settings that a node records."""

from trioha.config.broker import BrokerConfig
from trioha.node.session_recording import recording
from trioha.recording.reader import open_session
from trioha_sessions.sync import SyncRule


async def test_recorded_settings_have_the_limits_of_in_sync(tmp_path):
    config = BrokerConfig(
        record_dir=tmp_path, ha_max_gap_not_in_sync=1 << 20, ha_max_time_slave_not_catchup=7_000
    )
    async with recording(config) as (_, path):
        assert path is not None
    settings = open_session(path).identity.settings
    assert SyncRule.of(settings) == SyncRule(1 << 20, 7_000 * 10**6)
