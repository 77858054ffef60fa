"""The rules follow their file: changes in virtual time, bad files, and files being written."""

import os
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from trioha.broker.acl_file import CHECK_INTERVAL_S, AclFile
from trioha.broker.acl_rules import AclRules
from trioha.errors import ConfigError

ONE = "accounts: [{accessKey: account-1, secretKey: 12345678}]\n"
TWO = "accounts: [{accessKey: account-1, secretKey: 12345678}, {accessKey: account-2, secretKey: 12345678}]\n"


async def at_once(call):
    """In place of a worker thread, over which virtual time would leap."""
    await trio.lowlevel.checkpoint()
    return call()


@asynccontextmanager
async def watching(path):
    """The rules that come after the first."""
    changes = []

    async def noted(call):
        found = await at_once(call)
        if isinstance(found, AclRules):
            changes.append(found)
        return found

    file = await AclFile.open(path, in_thread=noted)
    changes.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run)
        yield changes
        nursery.cancel_scope.cancel()
    assert not changes or file.rules is changes[-1]


def write(path, text):
    """Replace the file as editors do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


async def test_a_change_is_read_when_the_file_was_the_same_for_one_interval(tmp_path, autojump_clock):
    path = tmp_path / "plain_acl.yml"
    write(path, ONE)
    async with watching(path) as changes:
        await trio.sleep(10 * CHECK_INTERVAL_S + 0.1)
        assert changes == []
        write(path, TWO)
        await trio.sleep(CHECK_INTERVAL_S)
        assert changes == []
        await trio.sleep(CHECK_INTERVAL_S)
        assert [sorted(rules.accounts) for rules in changes] == [["account-1", "account-2"]]
        await trio.sleep(10 * CHECK_INTERVAL_S)
        assert len(changes) == 1


async def test_a_file_that_is_being_written_is_not_read(tmp_path, autojump_clock):
    path = tmp_path / "plain_acl.yml"
    write(path, ONE)
    async with watching(path) as changes:
        await trio.sleep(0.1)
        with path.open("w") as file:
            for part in (TWO[:10], TWO[10:60], TWO[60:]):
                file.write(part)
                file.flush()
                await trio.sleep(CHECK_INTERVAL_S)
                assert changes == []
        await trio.sleep(CHECK_INTERVAL_S)
        assert [sorted(rules.accounts) for rules in changes] == [["account-1", "account-2"]]


@pytest.mark.parametrize("bad", ["accounts: [", "accounts: [{accessKey: x}]", "", None])
async def test_a_bad_file_keeps_the_rules_and_is_reported_once(tmp_path, autojump_clock, bad):
    path = tmp_path / "plain_acl.yml"
    write(path, ONE)
    async with watching(path) as changes:
        with capture_logs() as lines:
            if bad is None:
                path.unlink()
            else:
                write(path, bad)
            await trio.sleep(20 * CHECK_INTERVAL_S)
        assert changes == []
        (line,) = lines
        assert line["log_level"] == "error"
        assert line["event"].startswith(f"the rules of access control stay as they were: {path}")
        assert "\n" not in line["event"]
        assert "exc_info" not in line
        write(path, TWO)
        await trio.sleep(3 * CHECK_INTERVAL_S)
        assert len(changes) == 1


async def test_the_same_content_written_again_is_read_again(tmp_path, autojump_clock):
    path = tmp_path / "plain_acl.yml"
    write(path, ONE)
    async with watching(path) as changes:
        os.utime(path, ns=(0, 0))
        await trio.sleep(3 * CHECK_INTERVAL_S)
        assert len(changes) == 1


async def test_a_file_that_cannot_be_used_at_the_start_is_one_error(tmp_path, autojump_clock):
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        await AclFile.open(tmp_path / "missing.yml", in_thread=at_once)
    (tmp_path / "bad.yml").write_text("accounts: {")
    with pytest.raises(ConfigError, match=r"bad.yml:\d+: is not YAML"):
        await AclFile.open(tmp_path / "bad.yml", in_thread=at_once)
