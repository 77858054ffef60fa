"""Compressed bodies of messages."""

import zlib

import lz4.frame
import pytest
import zstandard

from trioha.store.message_bodies import compression_of, decode_body

PLAIN = b"order" * 100
COMPRESSIONS = [
    pytest.param(0x001, "zlib", zlib.compress, id="zlib of old producers"),
    pytest.param(0x301, "zlib", zlib.compress, id="zlib"),
    pytest.param(0x101, "lz4", lz4.frame.compress, id="lz4"),
    pytest.param(0x201, "zstd", zstandard.compress, id="zstd"),
]


@pytest.mark.parametrize(("flags", "name", "compress"), COMPRESSIONS)
def test_bodies_are_decompressed_and_invalid_ones_are_none(flags, name, compress):
    packed = compress(PLAIN)
    assert compression_of(flags) == name
    assert decode_body(packed, flags, body_bytes_max=500) == PLAIN
    assert decode_body(packed, flags, body_bytes_max=499) is None
    for end in range(len(packed)):
        assert decode_body(packed[:end], flags, body_bytes_max=500) is None
    assert decode_body(b"junk", flags, body_bytes_max=500) is None


@pytest.mark.parametrize(("flags", "name", "compress"), COMPRESSIONS)
def test_bodies_longer_than_one_step_of_a_decoder_are_decompressed(flags, name, compress):
    plain = b"".join(number.to_bytes(4, "big") for number in range(50_000))
    assert decode_body(compress(plain), flags, body_bytes_max=len(plain)) == plain


def test_a_body_that_is_not_compressed_is_given_as_it_is():
    assert compression_of(0x300) is None
    assert decode_body(b"plain", 0x300, body_bytes_max=1) == b"plain"


def test_an_unknown_compression_gives_none():
    assert compression_of(0x701) == "compression-7"
    assert decode_body(b"body", 0x701, body_bytes_max=500) is None


def test_zstd_frames_of_a_producer_that_does_not_know_their_length_are_decompressed():
    encoder = zstandard.ZstdCompressor().compressobj()
    packed = encoder.compress(PLAIN) + encoder.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert decode_body(packed, 0x201, body_bytes_max=500) == PLAIN
