"""Changes of a broker.conf by administrators, and the text of a configuration."""

import pytest

from tests.config.test_broker import OF_HOST
from tests.config.test_broker import SETTINGS as SAMPLES
from trioha.config.broker import SETTINGS, BrokerConfig
from trioha.config.loading import load_config
from trioha.config.update import ConfigFile, RefusedChange, config_text, plan_change, value_text
from trioha.errors import ConfigError

TEXT = """\
# the disk of this host
brokerName=broker-a
  fileReservedTime : 48
haSlaveFallbehindMax=1000
unknownToNobody.not=here
storePathRootDir=/store
"""
TEXT = TEXT.replace("unknownToNobody.not=here\n", "traceOn=true\n")
AT_RUN_TIME = frozenset({"file_reserved_time", "delete_when", "broker_permission", "ha_max_gap_not_in_sync"})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text(TEXT)
    return ConfigFile(path)


def running(file):
    return load_config(file.path, file.overrides).config


def plan(file, **wanted):
    return plan_change(file, running(file), wanted, at_run_time=AT_RUN_TIME)


def test_a_change_keeps_comments_order_and_keys_of_others(file):
    change = plan(file, fileReservedTime="24", deleteWhen="03;05")
    assert change.file.decode() == TEXT.replace("48", "24") + "deleteWhen=03;05\n"
    assert change.config.file_reserved_time == 24
    assert change.config.delete_when == {3, 5}
    assert change.attributes == {"file_reserved_time", "delete_when"}
    file.path.write_bytes(change.file)
    assert load_config(file.path).config == change.config


def test_a_setting_under_another_name_is_changed_where_it_is(file):
    change = plan(file, haMaxGapNotInSync="2000")
    assert b"haSlaveFallbehindMax=2000" in change.file
    assert b"haMaxGapNotInSync" not in change.file


def test_the_value_that_a_setting_has_is_accepted_for_every_key(file):
    change = plan(file, flushDiskType="ASYNC_FLUSH", fileReservedTime="48")
    assert change.attributes == frozenset()
    assert change.file.decode() == TEXT


@pytest.mark.parametrize(
    ("wanted", "refusal", "words"),
    [
        ({"flushDiskType": "SYNC_FLUSH"}, RefusedChange, "flushDiskType can only be changed by a restart"),
        ({"traceOn": "false"}, RefusedChange, "traceOn is not used by trioha"),
        ({"nonsense": "1"}, ConfigError, "nonsense: is not a key"),
        ({"fileReservedTime": "soon"}, ConfigError, "fileReservedTime: 'soon' is not a whole number"),
        ({"fileReservedTime": "24", "brokerPermission": "99"}, ConfigError, "brokerPermission: 99"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(file, wanted, refusal, words):
    with pytest.raises(refusal, match=words):
        plan(file, **wanted)
    assert file.path.read_text() == TEXT


def test_a_setting_of_the_command_line_cannot_be_changed_in_the_file(file):
    file = ConfigFile(file.path, ("fileReservedTime=12",))
    with pytest.raises(RefusedChange, match="fileReservedTime was given as -p"):
        plan(file, fileReservedTime="24")


def test_a_file_that_the_next_start_would_refuse_is_not_made(file):
    config = running(file)
    file.path.write_text(TEXT + "brokerRole=SLAVE\n")
    with pytest.raises(ConfigError, match="haMasterAddress"):
        plan_change(file, config, {"fileReservedTime": "24"}, at_run_time=AT_RUN_TIME)


def test_the_text_of_a_configuration_loads_as_the_same(tmp_path):
    """Every kind of value; keys without a value are left out, as they are by default."""
    (tmp_path / "given.conf").write_text(
        "brokerRole=SLAVE\nbrokerId=3\nhaMasterAddress=h:1\nnamesrvAddr=a:1;b:2\ndeleteWhen=04;16\n"
        "trioha.haAllowedPeers=10.0.0.0/8,::1\ntrioha.haStartFrom=earliest\nslaveReadEnable=true\n"
        f"storePathRootDir={tmp_path}\n"
    )
    config = load_config(tmp_path / "given.conf").config
    text = config_text(config).decode()
    assert "slaveReadEnable=true\n" in text
    assert "deleteWhen=04;16\n" in text
    (tmp_path / "again.conf").write_text(text)
    assert load_config(tmp_path / "again.conf").config == config
    assert len(text.splitlines()) > 70


def test_the_text_of_each_value_is_read_as_the_value():
    for attribute, (_, default, value) in SAMPLES.items():
        for each in (default, value):
            if each is not OF_HOST and not SETTINGS[attribute].is_secret:
                assert SETTINGS[attribute].parse(value_text(each)) == each, attribute
    controllers = BrokerConfig(controller_addr=("c0:9878", "c1:9878"))
    assert b"controllerAddr=c0:9878;c1:9878\n" in config_text(controllers)


def test_the_default_configuration_has_a_text():
    assert b"brokerPermission=6\n" in config_text(BrokerConfig())


SECRETS = "trioha.accessKey=account-1\ntrioha.secretKey=very-secret\ntls.server.keyPassword=very-secret\n"


def test_the_text_of_a_configuration_has_no_secrets(tmp_path):
    (tmp_path / "broker.conf").write_text(SECRETS)
    text = config_text(load_config(tmp_path / "broker.conf").config)
    assert b"trioha.accessKey=account-1\n" in text
    assert b"secretKey" not in text
    assert b"keyPassword" not in text
    assert b"very-secret" not in text


@pytest.mark.parametrize("value", ["very-secret", "another"])
def test_secrets_are_not_changed_and_not_confirmed(tmp_path, value):
    (tmp_path / "broker.conf").write_text(SECRETS)
    config = load_config(tmp_path / "broker.conf").config
    file = ConfigFile(tmp_path / "broker.conf")
    with pytest.raises(RefusedChange, match=r"^trioha\.secretKey can only be changed by a restart"):
        plan_change(file, config, {"trioha.secretKey": value}, at_run_time=frozenset())
