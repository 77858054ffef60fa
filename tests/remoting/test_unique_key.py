"""The message id of a producer."""

from datetime import UTC, datetime
from struct import unpack

from trioha.remoting.unique_key import UniqueKeys


def ms(*when):
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1000)


def test_a_key_holds_ip_process_salt_time_in_the_month_and_a_counter():
    keys = UniqueKeys(ip=bytes([192, 0, 2, 7]), pid=0x12345, salt=0xCAFEBABE)
    now_ms = ms(2026, 2, 3, 4, 5, 6) + 789
    keys.next_key(now_ms)
    key = keys.next_key(now_ms)
    assert key == key.upper()
    assert len(key) == 32
    in_month_ms = ((2 * 24 + 4) * 3600 + 5 * 60 + 6) * 1000 + 789
    assert unpack(">4sHIIH", bytes.fromhex(key)) == (
        bytes([192, 0, 2, 7]),
        0x2345,
        0xCAFEBABE,
        in_month_ms,
        1,
    )


def test_a_key_of_an_ipv6_producer_has_56_characters():
    assert len(UniqueKeys(ip=bytes(16), pid=1, salt=1).next_key(ms(2026, 1, 1))) == 56


def test_the_time_starts_again_with_each_month_and_year():
    keys = UniqueKeys(ip=bytes(4), pid=1, salt=1)
    moments = [ms(2025, 12, 31, 23, 59, 59), ms(2026, 1, 1), ms(2026, 2, 1) + 5, ms(2026, 1, 31)]
    in_month = [unpack(">I", bytes.fromhex(keys.next_key(moment))[10:14])[0] for moment in moments]
    assert in_month == [31 * 86_400_000 - 1000, 0, 5, 30 * 86_400_000]


def test_keys_of_one_millisecond_differ():
    keys = UniqueKeys(ip=bytes(4), pid=1, salt=1)
    assert len({keys.next_key(ms(2026, 1, 1)) for _ in range(65536)}) == 65536
