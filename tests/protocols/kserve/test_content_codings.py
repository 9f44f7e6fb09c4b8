import gzip
import os
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.seams.steps import at_once
from actors.values.errors import ErrorCode, InvalidArgument
from protocols.kserve.compression import (
    RATIO,
    UNSUSPICIOUS,
    BrokenStream,
    Suspicious,
    UnsupportedCompression,
    choose_coding,
    compress,
    decompress,
    is_compressed,
    most_of,
    unfolding,
)


@pytest.mark.parametrize(
    ("coding", "compressed"), [(b"gzip", True), (b"deflate", True), (b"identity", False), (b"", False)]
)
def test_known_codings_are_told_apart(coding, compressed):
    assert is_compressed(coding) is compressed


@pytest.mark.parametrize("coding", [b"GZIP", b"br", b"gzip, deflate", b"x-gzip"])
def test_other_codings_are_not_supported(coding):
    with pytest.raises(UnsupportedCompression) as caught:
        is_compressed(coding)
    assert caught.value.message == "Unsupported compression type"
    assert caught.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_gzip_and_zlib_are_told_apart_by_the_stream_itself(pack):
    assert decompress(pack(b"hello" * 100), 500) == b"hello" * 100


def test_an_empty_body_has_nothing_in_it():
    with pytest.raises(InvalidArgument) as caught:
        decompress(b"", 10)
    assert caught.value.message == "nothing to be decompressed"


def test_a_body_that_unfolds_to_too_much_is_refused():
    bomb = zlib.compress(bytes(10_000_000), 9)
    with pytest.raises(InvalidArgument) as caught:
        decompress(bomb, 499)
    assert caught.value.message == (
        "Decompressed data size exceeds the maximum allowed value of 499 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize("damage", [lambda b: b"xx" + b, lambda b: b[:-3], lambda b: b[:5]])
def test_a_broken_body_is_refused(damage):
    with pytest.raises(InvalidArgument, match="failed to decompress the request body"):
        decompress(damage(gzip.compress(b"hello" * 10)), 500)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"gzip, deflate", b"gzip"),
        (b"deflate, gzip", b"deflate"),
        (b"gzip;q=0.5, deflate;q=0.9", b"deflate"),
        (b"gzip;q=0.5, identity", b""),
        (b"identity, gzip", b""),
        (b"br, zstd", b""),
        (b"br, gzip;q=0.1", b"gzip"),
        (b"gzip;q=0", b""),
        (b"gzip;q=x", b""),
        (b"gzip ; q=1.0", b"gzip"),
        (b"*", b""),
        (b"", b""),
    ],
)
def test_the_greatest_weight_wins_and_the_first_among_equals(accepted, chosen):
    assert choose_coding(accepted) == chosen


def test_deflate_is_the_zlib_format():
    assert zlib.decompress(compress([b"a", memoryview(b"b")], b"deflate")) == b"ab"
    assert gzip.decompress(compress([b"a", b"b"], b"gzip")) == b"ab"


@given(st.lists(st.binary()), st.sampled_from([b"gzip", b"deflate"]))
def test_what_is_compressed_comes_back(parts, coding):
    whole = b"".join(parts)
    assert decompress(compress(parts, coding), len(whole)) == whole


MIB = 1024 * 1024


def sliced(body, limit):
    """Return a stream's content and how many slices there were."""
    work = unfolding(body, limit)
    slices = 1
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value[0], slices
        slices += 1


@pytest.mark.parametrize("content", [bytes(10 * MIB), os.urandom(4 * MIB)], ids=["zeros", "noise"])
def test_a_long_content_is_unfolded_in_slices(content):
    unfolded, slices = sliced(zlib.compress(content, 1), len(content))
    assert unfolded == content
    assert slices >= len(content) // MIB


def test_a_stream_that_holds_nothing_is_read_in_slices():
    """Blocks without content keep zlib busy, and make nothing."""
    nothing = b"\0\0\0\xff\xff"  # a stored block of no bytes
    header, end = b"\x78\x9c", b"\3\0" + zlib.adler32(b"").to_bytes(4, "big")
    unfolded, slices = sliced(header + nothing * 400_000 + end, 10)
    assert unfolded == b""
    assert slices >= 2_000_000 // (128 * 1024)


def test_zeros_that_fold_well_are_taken_up_to_a_size():
    content = bytes(UNSUSPICIOUS)
    assert at_once(unfolding(zlib.compress(content, 9), 2 * UNSUSPICIOUS))[0] == content


def test_a_longer_content_than_a_hundred_times_its_stream_is_refused():
    bomb = zlib.compress(bytes(64 * MIB), 9)
    tracemalloc.start()
    try:
        with pytest.raises(Suspicious, match=f"more than {UNSUSPICIOUS} bytes, {RATIO} times the"):
            at_once(unfolding(bomb, 2**31))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * UNSUSPICIOUS
    with pytest.raises(
        InvalidArgument, match="failed to decompress the request body: it unfolds to more than"
    ):
        decompress(bomb, 2**31)


def test_the_limit_grows_with_the_stream():
    assert most_of(0, 2**31) == UNSUSPICIOUS
    assert most_of(MIB, 2**31) == RATIO * MIB
    assert most_of(MIB, 50) == 50


def test_a_stream_that_is_cut_short_is_broken():
    with pytest.raises(BrokenStream, match="cut short"):
        at_once(unfolding(zlib.compress(bytes(MIB))[:-1], 2 * MIB))
