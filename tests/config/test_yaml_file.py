"""YAML files of operators: values with their lines, and files of any content."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.config.yaml_file import (
    FILE_BYTES_MAX,
    YamlFields,
    YamlList,
    YamlMap,
    YamlText,
    parse_yaml,
    read_file,
)
from trioha.errors import ConfigError

FILE = Path("plain_acl.yml")


def test_scalars_stay_text_and_have_their_lines():
    document = parse_yaml(b"# first\nkey: 0123\nlist:\n  - on\n  - 'null'\n  - null\nempty:\n", file=FILE)
    assert document == YamlMap(
        2,
        {
            "key": YamlText("0123", 2),
            "list": YamlList(4, [YamlText("on", 4), YamlText("null", 5), YamlText(None, 6)]),
            "empty": YamlText(None, 7),
        },
    )


@pytest.mark.parametrize("data", [b"", b"# only a comment\n", b"---\n...\n"])
def test_an_empty_file_has_no_values(data):
    document = parse_yaml(data, file=FILE)
    assert document is None or document == YamlText(None, document.line)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a: [1\n", "is not YAML"),
        (b"a: b: c\n", "plain_acl.yml:1: is not YAML"),
        (b"a:\n\t- 1\n", "plain_acl.yml:2: is not YAML"),
        (b"a: &x 1\nb: *x\n", "plain_acl.yml:2: aliases are not supported"),
        (b"a: 1\n---\nb: 2\n", "has more than one document"),
        (b"a: 1\na: 2\n", "plain_acl.yml:2: 'a' is given twice"),
        (b"? [1]\n: 2\n", "plain_acl.yml:1: has a key that is not text"),
        (b"[" * 100, "is nested deeper than 8 levels"),
        # PyYAML's own limit, from 6.0.4 on.
        (b"[" * 100_000, "plain_acl.yml:1: is not YAML: exceeded maximum nesting depth"),
        (b"- " * 100_000, "is nested deeper than 8 levels"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"a: \x00\n", "is not YAML"),
        (b"\xc3\x28", "is not YAML"),
        (b"a" * (FILE_BYTES_MAX + 1), "has more than"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(data, reason):
    with pytest.raises(ConfigError) as refused:
        parse_yaml(data, file=FILE)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@given(st.one_of(st.binary(max_size=200), st.text("-:[]{}&*!|>'\"# \n\tab?", max_size=80).map(str.encode)))
def test_any_bytes_are_values_or_one_error(data):
    said = ""
    try:
        parse_yaml(data, file=FILE)
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_file(tmp_path / "missing.yml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "admin"),
    [("admin: true", True), ("admin: No", False), ("admin:", False), ("other: x", False)],
)
def test_a_flag_is_false_where_it_is_missing(text, *, admin):
    document = parse_yaml(text.encode(), file=FILE)
    assert document is not None
    fields = YamlFields.of(document, file=FILE, keys=frozenset(("admin", "other")), what="the file")
    assert fields.flag("admin") is admin
