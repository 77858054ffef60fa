"""Thousands of mutated requests to a broker: each is answered, and the log holds whole records only.

What a producer may have stored goes on to slaves, who check it, and to the dispatcher: a message that either
of them refuses would stop them.
"""

import random
import shutil
from collections import Counter

import pytest
import trio
from attrs import evolve

from tests.broker.test_processor import Broker
from tests.levels import by_level
from tests.mutations.mutate import mutants
from trioha.errors import RemoteProtocolError
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, SerializeType, request
from trioha.remoting.send_message import _LONG_NAMES, SendMessageRequestHeader
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.record import decode_record
from trioha.store.record_layout import scan_records

SEEDS, MUTANTS = by_level(1, 20, 600), 1000
"""Each seed's mutants go to a broker of its own."""
TOPICS = ["Orders", "%RETRY%group", "t" * 120]
PROPERTIES = ["", "TAGS\x01tag\x02KEYS\x01a b\x02", "WAIT\x01false", "DELAY\x013\x02UNIQ_KEY\x01K\x02"]
NUMBERS = [b"", b"0", b"-1", b"2147483648", b"9" * 30, b"1e3", b" 7"]
TEXTS = [
    *NUMBERS,
    "\u00e9".encode(),
    b"\x01\x02",
    b"..",
    b"../x",
    b"a/b",
    b"\0",
    b"x" * 40_000,
    b"TAGS\x01tag\x02",
]
CODES = {int(code) for code in ResponseCode}


def valid_requests():
    """Sends in both forms and both serializations, and what else a node answers."""
    rng = random.Random(1)
    found = []
    for number in range(12):
        header = SendMessageRequestHeader(
            producer_group="group",
            topic=rng.choice(TOPICS),
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=number % 4,
            sys_flag=rng.choice([0, 1, 4, 8, 12]),
            born_timestamp_ms=1234,
            flag=5,
            properties=rng.choice(PROPERTIES),
        )
        ext = header.to_ext_fields()
        found.append(request(RequestCode.SEND_MESSAGE_V2, ext_fields=ext, body=b"hello" * number))
        long = {_LONG_NAMES[name]: value for name, value in ext.items()}
        found.append(request(RequestCode.SEND_MESSAGE, ext_fields=long, body=b"hello"))
    found += [request(RequestCode.GET_BROKER_HA_STATUS), request(RequestCode.GET_BROKER_RUNTIME_INFO)]
    return [encode(evolve(one, serialize_type=type_)) for one in found for type_ in SerializeType]


def fields_and_bytes(seed):
    """Commands of mutated frames, and of whole frames whose fields were mutated one by one."""
    valid = valid_requests()
    rng = random.Random(seed)
    for number, data in enumerate(mutants(seed, valid, MUTANTS)):
        decoder = FrameDecoder()
        decoder.feed(data if number % 2 else rng.choice(valid))
        try:
            command = decoder.next_command()
        except RemoteProtocolError:
            continue
        if command is None:
            continue
        if number % 2 == 0 and command.ext_fields:
            name = rng.choice(sorted(command.ext_fields))
            text = rng.choice([*TEXTS, next(mutants(seed + number, TEXTS, 1))]).decode("utf-8", "replace")
            command = evolve(command, ext_fields={**command.ext_fields, name: text})
        yield command


async def ask_all(seed, folder, answers):
    broker = Broker(folder)
    for topic in TOPICS:
        broker.topics.put(TopicConfig(topic, 8, 8))
    for command in fields_and_bytes(seed):
        answer = await broker.ask(command)
        assert isinstance(answer, RemotingCommand)
        assert answer.code in CODES
        answers[answer.code] += 1
    return broker


def walk(log):
    """Where a log's whole records end, each of which can be read."""
    offset = log.min_offset
    while view := log.read(offset, 1 << 20):
        starts = []
        end = scan_records(
            view, 0, len(view), offset, on_record=lambda at, _, starts=starts: starts.append(at)
        )
        assert len([decode_record(view, at) for at in starts]) == end.records
        if not end.blank:
            return offset + end.at
        offset += end.at + decode_record(view, end.at).total_size
    return offset


@pytest.mark.sized
@pytest.mark.timeout(by_level(60, 400, 3600))
def test_mutated_requests_are_answered_and_what_they_store_is_whole(tmp_path):
    for seed in range(SEEDS):
        folder, answers = tmp_path / str(seed), Counter()
        broker = trio.run(ask_all, seed, folder, answers)
        log, dispatcher = broker.log, broker.store.dispatcher
        assert answers[ResponseCode.SUCCESS] > 100, seed
        assert walk(log) == log.max_offset, seed
        dispatch_to_end(dispatcher, log)
        assert (dispatcher.position, dispatcher.faults) == (log.max_offset, 0), seed
        broker.store.close()
        shutil.rmtree(folder)
