"""Thousands of mutated inputs for everything that reads bytes from elsewhere.

Each gives what the valid one gave, something else that is possible, or the one error that is documented:
never another, never for ever, and never more memory than what was fed and a fixed amount.
"""

import random
import tracemalloc
from functools import cache
from pathlib import Path

import pytest

from tests.levels import by_level
from tests.mutations.mutate import mutants, pieces
from tests.remoting.recorded import STREAMS, frames, header_of
from tests.store.support import STORES
from trioha.config.loading import LoadedConfig, load_config
from trioha.config.properties_file import PropertiesDocument
from trioha.errors import ConfigError, RemoteProtocolError
from trioha.ha.frames import (
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    REPORT,
    REPORT_BYTES,
    FrameHeader,
    ReportDecoder,
    TransferDecoder,
)
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.command import RemotingCommand
from trioha.store.message_properties import parse_properties
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Blank, RecordError, decode_record, encode_record
from trioha.store.record_layout import BLANK_BYTES, check_record, scan_records

pytestmark = [pytest.mark.sized, pytest.mark.timeout(by_level(60, 400, 3600))]

ROOT = Path(__file__).parent.parent.parent
VECTORS = ROOT / "tests/vectors"
MUTANTS = by_level(2_000, 10_000, 600_000)
"""Of each kind."""
TRACED_EVERY = 20
"""Every how many mutants memory is measured, too, which takes its time."""
KEPT_BYTES_MAX = 64 * 1024
"""What may be in use at a time beside inputs of some KB; far below what a mutated length field asks for."""


def check_all(valid, check, *, kept_bytes_max=KEPT_BYTES_MAX):
    """`check(chance, mutant)` for each mutant of `valid`; some of them with an eye on their memory."""
    chance = random.Random(1)
    for number, mutant in enumerate(mutants(1, valid, MUTANTS)):
        is_traced = number % TRACED_EVERY == 0
        if is_traced:
            tracemalloc.start()
        try:
            check(chance, mutant)
            used_bytes = tracemalloc.get_traced_memory()[1] if is_traced else 0
        except Exception as error:
            error.add_note(f"mutant {number}: {mutant.hex()}")
            raise
        finally:
            if is_traced:
                tracemalloc.stop()
        assert used_bytes <= kept_bytes_max + 20 * len(mutant), f"mutant {number}: {mutant.hex()}"


# -- HA streams --------------------------------------------------------------------------------------------


@cache
def transfers():
    """Beginnings of recorded streams of masters."""
    return [path.read_bytes()[:3000] for path in sorted((VECTORS / "ha-wire").glob("*/*.m2s.bin"))]


def test_a_mutated_transfer_gives_its_frames_or_a_protocol_error():
    check_all(transfers(), parse_transfer)


def parse_transfer(chance, data):
    joined_bytes = chance.choice((0, 512, 65536))
    decoder = TransferDecoder(joined_within_bytes=joined_bytes)
    frames, body = [], b""
    is_refused = False
    try:
        for piece in pieces(chance, data):
            decoder.feed(bytearray(piece) if joined_bytes else piece)
            while (event := decoder.next_event()) is not None:
                if isinstance(event, FrameHeader):
                    if not event.body_bytes:
                        frames.append(event)
                else:
                    assert event.data
                    body += event.data
                    frames += event.ended
    except RemoteProtocolError:
        is_refused = True
    assert (frames, body, is_refused) == read_transfer(data)


def read_transfer(data):
    """What a stream says, read all at once: its whole frames, all bytes of bodies, and is it refused."""
    frames, body = [], b""
    while len(data) >= HEADER_BYTES:
        header = FrameHeader(*HEADER.unpack_from(data))
        if header.offset < 0 or not 0 <= header.body_bytes <= BODY_BYTES_MAX:
            return frames, body, True
        part = data[HEADER_BYTES : HEADER_BYTES + header.body_bytes]
        body += part
        if len(part) == header.body_bytes:
            frames.append(header)
        data = data[HEADER_BYTES + header.body_bytes :]
    return frames, body, False


@cache
def reports():
    """Recorded streams of slaves."""
    return [path.read_bytes()[:800] for path in sorted((VECTORS / "ha-wire").glob("*/*.s2m.bin"))]


def test_of_mutated_reports_the_last_whole_one_counts():
    check_all(reports(), parse_reports)


def parse_reports(chance, data):
    decoder = ReportDecoder()
    latest = None
    for piece in pieces(chance, data):
        found = decoder.feed(piece)
        latest = latest if found is None else found
    whole_bytes = len(data) - len(data) % REPORT_BYTES
    last = REPORT.unpack_from(data, whole_bytes - REPORT_BYTES)[0] if whole_bytes else None
    assert latest == last


# -- records -----------------------------------------------------------------------------------------------


V1, V2 = 0xDAA320A7, 0xDAA320AB


@cache
def records():
    """Recorded messages of every kind: both versions, each mixture of hosts, all sysFlags; and blanks."""
    found = {}
    for name in STORES:
        log = ReadOnlyCommitLog.open(VECTORS / name / "store")
        for record in log.records(log.min_offset):
            if isinstance(record, Blank):
                found["blank"] = [record.total_size.to_bytes(4, "big") + b"\xcb\xd4\x31\x94"]
            else:
                kind = (record.magic, record.born_host.is_ipv6, record.store_host.is_ipv6, record.sys_flag)
                found.setdefault(kind, []).append(encode_record(record))
    return [data for kind in found.values() for data in sorted(kind, key=len)[:4]]


def test_a_mutated_record_is_refused_or_is_the_record_that_its_bytes_say():
    check_all(records(), parse_record)


def parse_record(chance, data):
    try:
        record = decode_record(data)
    except RecordError:
        return
    if isinstance(record, Blank):
        assert record.total_size >= BLANK_BYTES
        return
    assert record.total_size <= len(data)
    # Nothing but the bytes beside the ports, which hold 16 bits in 32, can be lost.
    assert encode_record(record) == data[: record.total_size]
    parse_properties(record.properties_raw)


@cache
def stretches():
    """Some records in a row, as a log holds them."""
    found = []
    for name in STORES:
        (path, *_) = sorted((VECTORS / name / "store/commitlog").iterdir())
        found.append(path.read_bytes()[:4000])
    return found


def test_a_walk_over_mutated_records_passes_whole_ones_only_and_ends():
    check_all(stretches(), parse_stretch)


def parse_stretch(chance, data):
    good = []
    end = scan_records(memoryview(data), 0, len(data), 0, on_record=lambda at, size: good.append((at, size)))
    assert end.records == len(good)
    position = 0
    for at, size in good:
        assert at == position
        position += size
        assert check_record(memoryview(data), at, len(data), at) == size
    assert end.at == position <= len(data)


# -- remoting ----------------------------------------------------------------------------------------------


@cache
def remoting_frames():
    """Recorded frames of both versions, requests and answers, those that are short."""
    every = {frame for path in STREAMS for frame in frames(path) if len(frame) <= 3000}
    return sorted(every)[:: max(1, len(every) // 400)]


def parse_commands(decoder, data, chance):
    """Commands that come of `data`, in pieces; a decoder keeps no more than it was fed."""
    commands = []
    fed_bytes = 0
    for piece in pieces(chance, data):
        decoder.feed(piece)
        fed_bytes += len(piece)
        while (command := decoder.next_command()) is not None:
            commands.append(command)
        assert decoder.buffered_bytes <= fed_bytes
    return commands


def check_command(command):
    assert isinstance(command, RemotingCommand)
    assert -(2**31) <= command.code < 2**31
    assert -(2**31) <= command.opaque < 2**31
    assert all(type(key) is type(value) is str for key, value in command.ext_fields.items())


def test_a_mutated_remoting_frame_gives_commands_or_a_protocol_error():
    check_all(remoting_frames(), parse_frame)


def parse_frame(chance, data):
    # Behind it comes one that nothing is wrong with: the stream goes on or has ended, nothing between.
    decoder = FrameDecoder(frame_bytes_max=64 * 1024, header_bytes_max=16 * 1024)
    try:
        for command in parse_commands(decoder, data + remoting_frames()[0], chance):
            check_command(command)
    except RemoteProtocolError:
        assert decoder.buffered_bytes == 0


@cache
def json_headers():
    """Recorded JSON headers."""
    every = {header for frame in remoting_frames() if frame[4] == 0 and (header := header_of(frame))}
    return sorted(every)


@cache
def binary_headers():
    """Recorded binary headers."""
    return sorted({header_of(frame) for frame in remoting_frames() if frame[4] == 1})


def parse_header(serialization):
    def parse(chance, header):
        decoder = FrameDecoder()
        length = (4 + len(header)).to_bytes(4, "big")
        try:
            (command,) = parse_commands(
                decoder, length + bytes((serialization,)) + len(header).to_bytes(3, "big") + header, chance
            )
        except RemoteProtocolError:
            return
        check_command(command)

    return parse


def test_a_mutated_json_header_gives_a_command_or_a_protocol_error():
    check_all(json_headers(), parse_header(0))


def test_a_mutated_binary_header_gives_a_command_or_a_protocol_error():
    check_all(binary_headers(), parse_header(1))


# -- configuration -----------------------------------------------------------------------------------------


@cache
def config_files():
    """Parts of the files that operators start from, without their comments, and some lines that are rare."""
    lines = {
        line
        for path in (ROOT / "configs").rglob("*.conf")
        for line in path.read_bytes().splitlines()
        if line and not line.startswith(b"#")
    } | {
        b"trioha.haAllowedPeers = 10.0.0.0/8, ::1",
        b"deleteWhen: 04;05",
        b"brokerName = caf\\u00e9",
        b"storePathRootDir=${user.home}/a\\\n    /b",
        b"! a comment",
    }
    chance = random.Random(1)
    return [b"\n".join(chance.sample(sorted(lines), 3)) for _ in range(200)]


def test_a_mutated_configuration_is_loaded_or_refused_with_its_problems(monkeypatch):
    path, files = Path("broker.conf"), {}
    monkeypatch.setattr("trioha.config.loading.read_config_file", files.__getitem__)

    def load(_, data):
        assert PropertiesDocument.parse(data).to_bytes() == data
        files[path] = data
        problem = None
        try:
            assert isinstance(load_config(path), LoadedConfig)
        except ConfigError as error:
            problem = str(error)
        assert problem is None or problem.startswith(str(path))

    # A problem of a key that is not known names those that are like it.
    check_all(config_files(), load, kept_bytes_max=8 * KEPT_BYTES_MAX)
