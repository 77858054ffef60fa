"""The properties parser follows `java.util.Properties` and keeps every byte."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trioha.config.properties_file import PropertiesDocument


def pairs(text: str | bytes) -> list[tuple[str, str]]:
    data = text.encode() if isinstance(text, str) else text
    return [(entry.key, entry.value) for entry in PropertiesDocument.parse(data).entries]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", [("a", "1")]),
        ("a:1", [("a", "1")]),
        ("a 1", [("a", "1")]),
        ("a\t=\f1", [("a", "1")]),
        ("  a = 1  \n", [("a", "1  ")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("=1", [("", "1")]),
        ("a==1", [("a", "=1")]),
        ("a = = 1", [("a", "= 1")]),
        ("a b=c", [("a", "b=c")]),
        ("a\\ b=c", [("a b", "c")]),
        ("a\\=b=c", [("a=b", "c")]),
        ("a\\:b:c", [("a:b", "c")]),
        ("a\\\\=c", [("a\\", "c")]),
        ("a=x#y!z", [("a", "x#y!z")]),
        ("a=\\t\\n\\r\\f\\q\\\\", [("a", "\t\n\r\fq\\")]),
        ("a=C:\\\\store", [("a", "C:\\store")]),
        ("a=\\u0041\\u00e9\\u4E2D", [("a", "A\u00e9\u4e2d")]),
        ("a=\\uD83D\\uDE80", [("a", "\U0001f680")]),
        ("a=\\\\u12", [("a", "\\u12")]),
        ("# a=1\n!b=2\n  # c=3\nd=4", [("d", "4")]),
        ("# a \\\nb=1", [("b", "1")]),
        ("\n \t\n\r\r\na=1\rb=2\r\nc=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1\\\n   2\\\n\t3", [("a", "123")]),
        ("a=1\\\r\n2", [("a", "12")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("a=1\\\n\nb=2", [("a", "1"), ("b", "2")]),
        ("a=1\\\n#2", [("a", "1#2")]),
        ("a\\\n=\\\n1", [("a", "1")]),
        ("\\\n\na=1", [("a", "1")]),
        ("a=1\\", [("a", "1")]),
        ("a\\", [("a", "")]),
        ("a=1\x0b\x1c2", [("a", "1\x0b\x1c2")]),
        ("a=\u00e9", [("a", "\u00e9")]),
        (b"a=\xe9", [("a", "\u00e9")]),
        (b"\xef\xbb\xbfa=1", [("a", "1")]),
        ("", []),
    ],
)
def test_a_file_is_read_as_by_java(text, expected):
    assert pairs(text) == expected


def test_the_last_entry_of_a_key_overrides_the_others_and_all_are_kept():
    document = PropertiesDocument.parse(b"a=1\nb=2\na=3\n")
    assert document.get("a") == "3"
    assert [entry.value for entry in document.entries] == ["1", "2", "3"]
    assert document.get("c") is None
    assert document.get("c", "x") == "x"


def test_entries_know_the_line_they_start_on():
    document = PropertiesDocument.parse(b"# one\n\na=1\\\n  2\r\n!x\rb=3")
    assert [(entry.key, entry.line) for entry in document.entries] == [("a", 3), ("b", 6)]


@pytest.mark.parametrize(
    "text", [r"a=\u12", r"a=\u", r"\u00g0=1", r"a=\\\u1", r"a=x\u 123", r"a=\u1_23", r"a=\u0041\u1"]
)
def test_a_bad_unicode_escape_is_the_problem_of_its_entry(text):
    (entry,) = PropertiesDocument.parse(text.encode()).entries
    assert entry.problem is not None
    assert "four hexadecimal digits" in entry.problem


def test_set_changes_the_last_entry_of_the_key_only():
    document = PropertiesDocument.parse(
        b"# head\r\nkeep me\r\n  a : 1\r\n#tail\r\na: 2\r\nunknown.key = \\u0041"
    )
    document.set("a", "9")
    assert document.to_bytes() == (b"# head\r\nkeep me\r\n  a : 1\r\n#tail\r\na: 9\r\nunknown.key = \\u0041")


def test_set_of_a_new_key_adds_a_line_at_the_end_in_the_style_of_the_file():
    document = PropertiesDocument.parse(b"a=1\r\nb=2")
    document.set("c", "3")
    assert document.to_bytes() == b"a=1\r\nb=2\r\nc=3\r\n"
    empty = PropertiesDocument.parse(b"")
    empty.set("a", "1")
    assert empty.to_bytes() == b"a=1\n"


def test_set_after_an_open_continuation_adds_an_entry_of_its_own():
    for text in (b"a=1\\", b"a=1\\\n", b"\\\n", b"# comment \\"):
        document = PropertiesDocument.parse(text)
        before = pairs(text)
        document.set("c", "3")
        assert pairs(document.to_bytes()) == [*before, ("c", "3")]


def test_set_joins_the_lines_of_a_continued_entry_and_renumbers_what_follows():
    document = PropertiesDocument.parse(b"a=1\\\n2\nb=3\n")
    document.set("a", "4")
    assert document.to_bytes() == b"a=4\nb=3\n"
    assert [(entry.key, entry.line) for entry in document.entries] == [("a", 1), ("b", 2)]


_TEXT = st.text(st.sampled_from("ab=: \t\f\\\r\n#!u0041\u00e9\U0001f680"), max_size=60)


@given(_TEXT)
def test_an_unchanged_document_is_byte_identical(text):
    for encoding in ("utf-8", "utf-8-sig"):
        data = text.encode(encoding)
        assert PropertiesDocument.parse(data).to_bytes() == data


@given(st.binary(max_size=80))
def test_any_bytes_are_kept(data):
    assert PropertiesDocument.parse(data).to_bytes() == data


@given(_TEXT, st.text(max_size=12), st.text(max_size=20))
@example("\n\\\r", "", "")
def test_what_was_set_is_read_back_and_other_entries_stay(text, key, value):
    document = PropertiesDocument.parse(text.encode())
    others = [(entry.key, entry.value) for entry in document.entries if entry.key != key]
    document.set(key, value)
    assert document.get(key) == value
    again = PropertiesDocument.parse(document.to_bytes())
    assert again.get(key) == value
    assert [(entry.key, entry.value) for entry in again.entries if entry.key != key] == others
    assert again.entries == document.entries


@given(st.text(max_size=20))
def test_what_set_writes_is_ascii(value):
    document = PropertiesDocument.parse(b"")
    document.set("key", value)
    document.to_bytes().decode("ascii")


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=6))
def test_many_keys_round_trip_in_order(entries):
    document = PropertiesDocument.parse(b"")
    for key, value in entries:
        document.set(key, value)
    wanted = dict(entries)
    assert pairs(document.to_bytes()) == list(wanted.items())
