"""Values that a peer may put where a number, a name or a text belongs, and seldom what the reader expects."""

from __future__ import annotations

import random
from json.encoder import encode_basestring_ascii
from typing import Final

LONG_TEXT_BYTES: Final = 1 << 20
"""Length of the longest text: a megabyte."""

NUMBERS: Final = (
    # Signs.
    "-", "--5", "+5", "-+5", "5-", "-0", "+", "\u22125",
    # Digits of other alphabets, and characters that Python calls digits or numbers.
    "\u0665", "\u096b", "\uff15", "\u00b2", "\u2167", "\u00bd", "5\u0665",
    # White space and separators.
    "5\n", "\n5", " 5", "5 ", "5\t", "5\0", "5_0", "1,000", "5\u00a0", "5\r\n",
    # Other notations.
    "0x10", "0b1", "0o7", "1e3", "1.0", ".5", "5L", "NaN", "nan", "Infinity", "-Infinity", "inf", "null",
    "None",
    "true", "false", "()", "[5]", "{}", "'5'", '"5"', "5;6",
    # Ends of ranges, and one beyond.
    "0", "-1", "1", "127", "128", "32767", "32768", "65535", "65536", "2147483647", "2147483648",
    "-2147483648",
    "-2147483649", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551616",
    # Many digits.
    "00000000000000000005", "0" * 30 + "5", "9" * 20, "-" + "9" * 20, "9" * 400, "9" * 5001,
)  # fmt: skip
TEXTS: Final = (
    "", " ", "\0", "a\0b", "\ud800", "\udfff\ud800", "a\udc80", "\U0001f600", "\u00e9", "e\u0301",
    "\u202eabc",
    "\ufeff", "\ufffe", "\uffff", "\x1b[2J", "\x7f", "\x01", "\x02", "\x01\x02", "%s%n%x", "${jndi:ldap://x}",
    "../../etc/passwd", "a/b", "/", ".", "..", "~", "C:\\x", "a b", "a\nb", "a\r\nb: c", '"', "'", "\\",
    "\\u0041",
    "</script>", "' OR 1=1 --", "%RETRY%", "%RETRY%group", "%DLQ%group", "%LMQ%a", "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "SELF_TEST_TOPIC", "rmq_sys_x", "OFFSET_MOVED_EVENT", "|", "-", "_",
    "a" * 126, "a" * 127, "a" * 128, "a" * 255, "a" * 256, "%RETRY%" + "a" * 248, "%RETRY%" + "a" * 249,
)  # fmt: skip
_LONG: Final = (
    "a" * 32767, "a" * 32768, "\u00e9" * 16384, "\U0001f600" * 8192, "a" * 65535, "a" * 65536, "9" * 40_000,
)  # fmt: skip
PROPERTIES: Final = (
    "", "A", "A\x01", "\x01", "\x02", "\x01\x02\x01\x02", "A\x01B\x01C\x02", "A\x01B\x02A\x01C\x02",
    "\x02A\x01B",
    "TAGS\x01tag", "TAGS\x01\ud800\x02", "TAGS\x01\x02KEYS\x01\x02", "KEYS\x01" + "k " * 300,
    "KEYS\x01" + " " * 3000,
    "KEYS\x01\0\x02", "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01" + "u" * 9000, "WAIT\x01false\x02", "WAIT\x01\x02",
    "WAIT\x01FALSE\x02", "DELAY\x013\x02", "DELAY\x01--5\x02", "DELAY\x01+5\x02", "DELAY\x01\u0665\x02",
    "DELAY\x01\x02", "DELAY\x01-1\x02", "DELAY\x0119\x02", "DELAY\x01" + "9" * 30 + "\x02",
    "DELAY\x015\n\x02",
    "DELAY\x01" + "9" * 5001 + "\x02", "DELAY\x01\u00b2\x02", "INNER_NUM\x015\x02", "INNER_BASE\x015\x02",
    "INNER_MULTI_DISPATCH\x01a,b\x02", "INNER_MULTI_DISPATCH\x01" + "q," * 2000 + "\x02",
    "INNER_MULTI_DISPATCH\x01a\x02INNER_MULTI_QUEUE_OFFSET\x01x\x02",
    "INNER_MULTI_QUEUE_OFFSET\x01-1,--5\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01g\x02", "REAL_TOPIC\x01a\x02REAL_QID\x01--5\x02", "CLUSTER\x01x\x02",
    "TIMER_DELAY_SEC\x01--5\x02", "TIMER_DELIVER_MS\x01" + "9" * 30 + "\x02", "A\x01" + "b" * 32700,
    "A\x01" + "b" * 32800, "__CRC32#\x01--5\x02", "A\x01B\x02" * 500,
)  # fmt: skip
"""Message properties as sends carry them: `key 0x01 value 0x02 ...`."""

_LITERALS: Final = (
    "5", "-5", "-0", "0", "5.0", "5.5", "1e3", "1e400", "-1e400", "1E-400", "2147483648", "-2147483649",
    "9223372036854775808", "NaN", "Infinity", "-Infinity", "null", "true", "false", "[]", "{}", "[5]",
    "[null]",
    '{"a":1}', '{"a":{"b":[1,2,{"c":null}]}}', '""', r'"\u0000"', r'"\ud800"', r'"\udfff\ud83d"',
    r'"\ud83d\ude00"',
    r'"\u0665"', '"--5"', '"+5"', r'"5\n"', '"\\/"', '{"code":{"code":5}}', '["5","5"]', "1" + "0" * 400,
    '{"a":1,"a":2}', "{1:2}", "{{}:1}", "'5'", "'\\x41'",
)  # fmt: skip
"""JSON values of every type; most of them whole, some of fastjson's dialect."""
_FRAGMENTS: Final = (
    "", "+5", "--5", "05", "5-", "5L", "0x10", ".5", "5.", "1e", "nan", "None", "undefined", "True", "[",
    "{", "]",
    "}", "[5", '{"a"', '{"a":', '"', '"abc', "'abc", r'"\x"', r'"\u12"', r'"\ud8', "5 5", "5,", ",", ":",
    "/**/5",
    "//", "#", "\0", "\ufeff5", "1" + "0" * 5000, "-" + "9" * 5000, "[" * 500, "{" * 500, '{"a":' * 500,
    "\u0665", "5\u0665", "(5)", "<5>", "=5", "5;", "1_000",
)  # fmt: skip
"""What is no JSON value, or one that no reader should accept."""


def deep(levels: int, opening: str = "[", closing: str = "]") -> str:
    """So many arrays (or objects) in each other."""
    return opening * levels + closing * levels


def text_value(chance: random.Random) -> str:
    """A text for any field. One in two thousand is a megabyte long."""
    draw = chance.random()
    if draw < 0.5:
        return chance.choice(NUMBERS)
    if draw < 0.85:
        return chance.choice(TEXTS)
    if draw < 0.9:
        return str(chance.randint(-(2**65), 2**65))
    if draw < 0.99:
        return _drawn_text(chance)
    if draw < 0.9995:
        return chance.choice(_LONG)
    return chance.choice(("a", "9", "\u00e9", "\0")) * LONG_TEXT_BYTES


def _drawn_text(chance: random.Random) -> str:
    number = chance.choice((1, 2, 5, 20, 60))
    highest = chance.choice((0x20, 0x7F, 0x7F, 0xFF, 0xFFFF, 0x10FFFF))
    return "".join(map(chr, (chance.randint(0, highest) for _ in range(number))))


def properties_value(chance: random.Random) -> str:
    """A text for the properties of a message."""
    draw = chance.random()
    if draw < 0.7:
        return chance.choice(PROPERTIES)
    if draw < 0.9:
        return chance.choice(PROPERTIES) + chance.choice(("", "\x02")) + chance.choice(PROPERTIES)
    return text_value(chance)


def json_value(chance: random.Random) -> str:
    """JSON text of a value of any type; often no JSON at all."""
    draw = chance.random()
    if draw < 0.3:
        return quoted(text_value(chance))
    if draw < 0.65:
        return chance.choice(_LITERALS)
    if draw < 0.9:
        return chance.choice(_FRAGMENTS)
    if draw < 0.97:
        return str(chance.choice((-1, 1)) * (1 << chance.randint(0, 300)) + chance.randint(-1, 1))
    levels = chance.choice((10, 60, 100, 900, 1100, 20_000))
    return deep(levels) if chance.random() < 0.5 else deep(levels, '{"a":', "}").replace(":}", ":1}", 1)


def quoted(text: str) -> str:
    """`text` as a JSON string; what UTF-8 cannot say is escaped."""
    return encode_basestring_ascii(text)
