"""Text from outside reaches no terminal as it came."""

import json
import re
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.outside_text import clean, escaped, escaped_json, escaped_lines, is_safe, one_for_one

CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
HOSTILE = {
    "the clipboard": (CLIPBOARD, r"\x1b]52;c;cm0gLXJm\x07"),
    "the screen": ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
    "C1": ("\x9b2J\x9d52;c;x\x9c", r"\x9b2J\x9d52;c;x\x9c"),
    "DEL and backspace": ("ok\x7f\x7f\b", r"ok\x7f\x7f\x08"),
    "a forged line": ("a\r\ntrioha: all is well\x85\u2028", r"a\r\ntrioha: all is well\x85\u2028"),
    "direction": ("\u202efdp.exe\u2066\u200f", r"\u202efdp.exe\u2066\u200f"),
    "invisible": ("a\u200bb\ufeff\u00ad\U000e0041", r"a\u200bb\ufeff\xad\U000e0041"),
    "half a pair": ("\udc80\ud83d", r"\udc80\ud83d"),
}
FORBIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_a_terminal_would_obey_is_shown_as_its_escape(what):
    text, shown = HOSTILE[what]
    assert escaped(text) == shown


@pytest.mark.parametrize(
    "text", ["", "plain", "订单　完成", "שלום", "e\u0301", "1\u00a0000", "👍", "[/x] [fd00::5]:1"]
)
def test_letters_spaces_and_emoji_stay(text):
    assert escaped(text) == text
    assert is_safe(text)
    assert one_for_one(text) == text


def test_lines_of_our_own_stay_lines():
    assert escaped_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n"


@given(st.text())
def test_no_text_whatever_leaves_a_control_character(text):
    for shown in (escaped(text), escaped_json(json.dumps(text, ensure_ascii=False)), clean(text)):
        assert not {category(character) for character in shown} & FORBIDDEN
    assert is_safe(one_for_one(text).replace("\n", ""))
    assert len(one_for_one(text)) == len(text)


@given(st.dictionaries(st.text(), st.text() | st.characters(categories=["Cs"])))
def test_escaped_json_has_the_same_value_and_is_utf_8(value):
    line = escaped_json(json.dumps(value, ensure_ascii=False))
    line.encode()
    assert json.loads(line) == json.loads(json.dumps(value))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
