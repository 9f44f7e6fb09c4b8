import base64
import json

import pytest

from actors.values.errors import Internal, InvalidArgument
from actors.values.interfaces import CudaRegion, SystemRegion
from protocols.kserve.extensions.shared_memory import (
    CudaPlace,
    SystemPlace,
    check_named,
    cuda_status,
    read_cuda_place,
    read_system_place,
    system_status,
)

HANDLE = bytes(range(64))
B64 = base64.b64encode(HANDLE).decode()
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


def test_regions_are_told_as_json():
    told = system_status([SystemRegion(name="R\udcff", key="/k", offset=0, byte_size=2**64 - 1)])
    # Bytes that are not UTF-8 go as they came.
    assert told == b'[{"name":"R\xff","key":"/k","offset":0,"byte_size":18446744073709551615}]'
    told = cuda_status([CudaRegion(name="C", device_id=1, byte_size=8)])
    assert json.loads(told) == [{"name": "C", "device_id": 1, "byte_size": 8}]
    assert system_status([]) == cuda_status([]) == b"[]"


def test_a_registration_is_read():
    place = SystemPlace("/k", 0, 8)
    assert read_system_place({"key": "/k", "byte_size": 8}) == place
    assert read_system_place({"key": "/k", "byte_size": 8, "offset": 0, "more": 1}) == place
    handle = {"raw_handle": {"b64": B64}, "byte_size": 8, "device_id": 2}
    assert read_cuda_place(handle) == CudaPlace(HANDLE, 2, 8)


@pytest.mark.parametrize(
    ("document", "error", "text"),
    [
        ([], InvalidArgument, "Shared memory register request has no 'key' field"),
        ({"key": None, "byte_size": 8}, Internal, "attempt to access JSON non-string as string"),
        ({"key": "/k", "offset": True, "byte_size": 8}, Internal, NOT_UNSIGNED),
        ({"key": "/k"}, InvalidArgument, "Shared memory register request has no 'byte_size' field"),
        ({"key": "/k", "byte_size": -1}, Internal, NOT_UNSIGNED),
    ],
)
def test_a_bad_registration_is_refused(document, error, text):
    with pytest.raises(error) as caught:
        read_system_place(document)
    assert caught.value.message == text


@pytest.mark.parametrize(
    ("document", "error", "text"),
    [
        (None, InvalidArgument, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": []}, Internal, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": 1}}, Internal, "attempt to access JSON non-string as string"),
        ({"raw_handle": {"b64": B64}}, Internal, "attempt to access non-existing object member 'byte_size'"),
        ({"raw_handle": {"b64": B64}, "byte_size": "8"}, Internal, NOT_UNSIGNED),
        (
            {"raw_handle": {"b64": B64}, "byte_size": 8},
            Internal,
            "attempt to access non-existing object member 'device_id'",
        ),
        *(
            (
                {"raw_handle": {"b64": handle}, "byte_size": 8, "device_id": 0},
                InvalidArgument,
                "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
            )
            for handle in ("", "A", "ü", B64[:-4])
        ),
    ],
)
def test_a_bad_registration_of_a_gpu_s_memory_is_refused(document, error, text):
    with pytest.raises(error) as caught:
        read_cuda_place(document)
    assert caught.value.message == text


def test_a_registration_names_its_region():
    check_named("R", cuda=True)
    for cuda, kind in ((False, "system"), (True, "cuda")):
        with pytest.raises(InvalidArgument) as caught:
            check_named("", cuda=cuda)
        assert caught.value.message == f"'region name' is necessary to register {kind} shared memory region"
