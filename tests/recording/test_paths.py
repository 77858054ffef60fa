"""Session folders as users name them become absolute paths of this machine."""

from pathlib import Path

import pytest

from tests.sessions.sessions import slave_events, write_session
from trioha.errors import StoreError
from trioha.recording.paths import absolute_path
from trioha.recording.reader import find_sessions


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("/var/trioha", "/var/trioha"),
        ("/var/tri%20oha", "/var/tri%20oha"),
        ("file:/var/trioha", "/var/trioha"),
        ("file:///var/trioha", "/var/trioha"),
        ("FILE:///var/trioha", "/var/trioha"),
        ("file://localhost/var/trioha", "/var/trioha"),
        ("file:///var/tri%20oha/%C3%A4%25", "/var/tri oha/ä%"),
        ("file:///var/a+b?c#d", "/var/a+b?c#d"),
        # A Path has lost two of the slashes.
        (Path("file:///var/trioha"), "/var/trioha"),
        ("/odd/file:/name", "/odd/file:/name"),
    ],
)
def test_paths_and_file_uris_of_this_machine(named, path):
    assert absolute_path(named) == Path(path)


def test_relative_path_starts_at_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for named in ("sessions", "./sessions", Path("sessions")):
        assert absolute_path(named) == tmp_path / "sessions"
    # A name with a colon is a name.
    assert absolute_path("12:03:04") == tmp_path / "12:03:04"


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("hdfs://name:8020/sessions", "hdfs: is not read"),
        ("s3a://bucket/sessions", "s3a: is not read"),
        (Path("s3a://bucket/sessions"), "s3a: is not read"),
        ("dbfs:/sessions", "dbfs: is not read"),
        ("file://other/sessions", r"of another machine \(other\)"),
        ("file:sessions", "without an absolute path"),
        ("file://sessions", "without an absolute path"),
        ("file:///%FF", "not UTF-8"),
        ("", "not a path"),
        ("a\0b", "not a path"),
        ("file:///a%00b", "not a path"),
    ],
)
def test_everything_else_is_refused_in_one_line(named, reason):
    with pytest.raises(StoreError, match=reason) as caught:
        absolute_path(named)
    assert "\n" not in str(caught.value)


def test_sessions_that_are_found_have_absolute_paths(tmp_path, monkeypatch):
    path = write_session(tmp_path / "re cordings" / "session", slave_events(), role="SLAVE", broker_id=1)
    monkeypatch.chdir(tmp_path)
    named = ("re cordings", "re cordings/session", f"file:{tmp_path}/re%20cordings", path.parent.as_uri())
    for one in named:
        assert find_sessions([Path(one)]) == [path]
    assert find_sessions([Path(one) for one in named]) == [path]
