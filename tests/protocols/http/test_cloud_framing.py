"""How platforms mark binary bodies, and which errors tell of a lack of memory."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.values.errors import InvalidArgument
from protocols.http.cloud.framing import Framing
from protocols.http.cloud.shortage import tells_of_shortage

FRAMING = Framing("sagemaker-triton")
PREFIX = "application/vnd.sagemaker-triton.binary+json;json-header-size="
LENGTH = b"inference-header-content-length"


def requested(media_type):
    return dict(FRAMING.request([(b"content-type", media_type.encode())])).get(LENGTH)


@pytest.mark.parametrize(
    ("media_type", "length"),
    [
        (PREFIX + "123", b"123"),
        (PREFIX + "0", b"0"),
        (PREFIX + " +7", b"7"),
        (PREFIX + "12; charset=utf-8", b"12"),
        (PREFIX + "-1", b"-1"),
        (PREFIX + "2147483647", b"2147483647"),
        (PREFIX + "-2147483648", b"-2147483648"),
        (PREFIX + "0000000000000012", b"12"),
        ("application/json", None),
        ("", None),
    ],
)
def test_the_length_of_the_json_text_stands_in_the_media_type(media_type, length):
    assert requested(media_type) == length


def test_a_request_without_a_media_type_is_json():
    assert FRAMING.request([(b"host", b"a")]) == [(b"host", b"a")]


@pytest.mark.parametrize(
    ("media_type", "message"),
    [
        (f"x;{PREFIX}1", f"expect MIME type for binary data starts with '{PREFIX}', got: x;{PREFIX}1"),
        (PREFIX + "x1", "Unable to parse inference header size, got: x1"),
        (PREFIX, "Unable to parse inference header size, got: "),
        (
            PREFIX + "2147483648",
            "Unable to parse inference header size, value is out of range, got: 2147483648",
        ),
        (
            PREFIX + "9" * 5000,
            f"Unable to parse inference header size, value is out of range, got: {'9' * 5000}",
        ),
    ],
)
def test_a_media_type_without_a_length_is_refused(media_type, message):
    with pytest.raises(InvalidArgument) as caught:
        requested(media_type)
    assert caught.value.message == message


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=40).map(PREFIX.encode().__add__)))
def test_any_media_type_says_a_length_that_the_v2_api_reads_or_is_refused(media_type):
    with suppress(InvalidArgument):
        length = dict(FRAMING.request([(b"content-type", media_type)])).get(LENGTH)
        assert length is None or -(2**31) <= int(length) < 2**31


def test_what_the_platform_does_not_know_is_left_out():
    kept = FRAMING.request(
        [(LENGTH, b"3"), (b"content-encoding", b"gzip"), (b"accept-encoding", b"gzip"), (b"host", b"a")]
    )
    assert kept == [(b"host", b"a")]


def test_an_answer_with_binary_tensors_says_so_in_its_media_type():
    answer = FRAMING.response([(b"content-type", b"application/octet-stream"), (LENGTH, b"42"), (b"x", b"y")])
    assert answer == [(b"content-type", (PREFIX + "42").encode()), (b"x", b"y")]
    plain = [(b"content-type", b"application/json")]
    assert FRAMING.response(plain) == plain


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: CUDA out of memory. Tried to allocate 20 GiB",
        "CUDA_OUT_OF_MEMORY",
        "Out of memory",
        "Out Of Memory",
        "std::bad_alloc: out of memory",
        "numpy.core._exceptions._ArrayMemoryError: MemoryError",
        "torch.cuda.OutOfMemoryError",
        "ResourceExhausted: OOM when allocating tensor",
        "Dst tensor is not initialized",
        "Src tensor is not initialized",
        "CNMEM_STATUS_OUT_OF_MEMORY",
        "CUDNN_STATUS_NOT_INITIALIZED",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUBLAS_STATUS_NOT_INITIALIZED",
        "Failed to allocate memory",
        "onnxruntime: failed to allocate memory for requested buffer",
        "OSError: [Errno 28] No space left on device",
        "the worker of instance 0 died: lack of memory",
    ],
)
def test_errors_of_frameworks_that_lack_memory_are_known(message):
    assert tells_of_shortage(message)


@pytest.mark.parametrize("message", ["", "invalid argument", "out of range", "Memory is fine"])
def test_other_errors_tell_of_no_lack(message):
    assert not tells_of_shortage(message)
