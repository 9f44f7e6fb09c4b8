"""Each row of contract, shared_memory.md, over both protocols, against real listeners.

What is done with the bytes is `test_shared_memory.py`.
"""

import base64
import http.client
import json
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from actors.regions.policy import RegionLimits
from actors.serving.validation import Validator
from actors.values.callers import Action
from protocols.http.options import V2Options
from tests.protocols.fakes import FakeModel, FakeServer, default_models
from tests.support.flavours import Addresses, listeners_alone
from tests.support.shared_memory import (
    PAGE,
    Face,
    FakeDevices,
    FakeMemory,
    Given,
    Place,
    Refused,
    an_object,
    refusal,
    text_of,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

HANDLE = bytes(range(64))
HANDLE_64 = base64.b64encode(HANDLE)  # as clients have it
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."


class CheckedModel(FakeModel):
    """A model in memory that refuses what a real one would."""

    def submit_nowait(self, request):
        Validator(self.spec)(request)
        super().submit_nowait(request)


def server_of(**options) -> FakeServer:
    return FakeServer([CheckedModel(model.spec, model.execute) for model in default_models()], **options)


@pytest.fixture(scope="module")
def addresses() -> Iterator[Addresses]:
    with listeners_alone(server_of()) as addresses:
        yield addresses


def face_at(addresses, protocol):
    return Face(protocol, getattr(addresses, protocol))


@pytest.fixture(params=["http", "grpc"])
def protocol(request):
    return request.param


@pytest.fixture
def face(addresses, protocol):
    face = face_at(addresses, protocol)
    yield face
    assert face.unregister() is None
    face.close()


@pytest.fixture
def disabled(protocol):
    with listeners_alone(server_of(allow_shm=False)) as addresses:
        face = face_at(addresses, protocol)
        yield face
        face.close()


@pytest.fixture
def devices():
    return FakeDevices()


@pytest.fixture
def with_gpu(devices, protocol):
    with listeners_alone(server_of(devices=devices)) as addresses:
        face = face_at(addresses, protocol)
        yield face
        face.close()


@pytest.fixture
def memory():
    with an_object(4 * PAGE) as made:
        yield made


@pytest.fixture
def ask(addresses):
    """Ask over bare HTTP: status, and the error's text or the JSON of the body."""
    return asking(addresses)


def asking(addresses):
    def ask(method, path, body=None):
        connection = http.client.HTTPConnection(addresses.http, timeout=10)
        try:
            connection.request(
                method, path, body if body is None or type(body) is bytes else json.dumps(body)
            )
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        return response.status, text_of(content) if response.status >= 400 else content

    return ask


# 1. Enablement


def test_nothing_can_be_registered_unless_the_operator_allows_it(disabled, protocol, memory):
    refused = refusal(protocol, "UNSUPPORTED", DISABLED)
    assert disabled.register("R", memory.key, 64) == refused
    assert disabled.unregister("R") == refused
    assert disabled.unregister() == refused
    assert disabled.unregister("R", cuda=True) == refused
    assert disabled.status() == disabled.status(cuda=True) == []
    assert disabled.status("R") == refusal(
        protocol, "NOT_FOUND", "Unable to find system shared memory region: 'R'"
    )


def test_cuda_shared_memory_needs_a_gpu(face, disabled, protocol):
    no_gpu = "failed to register CUDA shared memory region: 'R', GPUs not supported"
    assert face.register_cuda("R", HANDLE_64, 0, 64) == refusal(protocol, "INVALID_ARG", no_gpu)
    # Over HTTP the flag comes first; over gRPC the GPU.
    expected = ("UNSUPPORTED", DISABLED) if protocol == "http" else ("INVALID_ARG", no_gpu)
    assert disabled.register_cuda("R", HANDLE_64, 0, 64) == refusal(protocol, *expected)
    assert face.status(cuda=True) == []
    assert face.unregister("R", cuda=True) is None
    assert face.unregister(cuda=True) is None


def test_the_flag_is_looked_at_before_the_name_and_the_body(memory):
    with listeners_alone(server_of(allow_shm=False)) as addresses:
        ask = asking(addresses)
        assert ask("POST", "/v2/systemsharedmemory/register", b"{") == (501, DISABLED)
        assert ask("POST", "/v2/cudasharedmemory/region/R/register", b"{") == (501, DISABLED)
        assert ask("GET", "/v2/systemsharedmemory/register")[0] == 405


def test_a_restriction_is_looked_at_before_everything_else(memory):
    options = V2Options(restricted={Action.SHARED_MEMORY: ("Key", "value")})
    with listeners_alone(server_of(allow_shm=False), options) as addresses:
        ask = asking(addresses)
        for path in ("region/R/register", "register", "unregister", "status", "region/R/status"):
            for kind in ("system", "cuda"):
                method = "GET" if path.endswith("status") else "POST"
                assert ask(method, f"/v2/{kind}sharedmemory/{path}") == (
                    403,
                    "This API is restricted, expecting header 'Key'",
                )


# 2 and 4. HTTP endpoints and bodies


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize(
    ("method", "action"), [("POST", "status"), ("GET", "register"), ("GET", "unregister")]
)
def test_a_wrong_method_is_not_allowed(ask, kind, method, action):
    assert ask(method, f"/v2/{kind}sharedmemory/region/R/{action}")[0] == 405


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_a_registration_names_its_region(ask, kind):
    assert ask("POST", f"/v2/{kind}sharedmemory/register", b"{") == (
        400,
        f"'region name' is necessary to register {kind} shared memory region",
    )


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        ({}, 400, "Shared memory register request has no 'key' field"),
        ([], 400, "Shared memory register request has no 'key' field"),
        ({"key": 1, "byte_size": 1}, 500, "attempt to access JSON non-string as string"),
        (
            {"key": "/k", "offset": "0", "byte_size": 1},
            500,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"key": "/k", "offset": -1, "byte_size": 1},
            500,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ({"key": "/k", "offset": 0}, 400, "Shared memory register request has no 'byte_size' field"),
        (
            {"key": "/k", "byte_size": 1.5},
            500,
            "attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
    ],
)
def test_a_bad_registration_is_refused_in_triton_s_words(ask, body, status, text):
    assert ask("POST", "/v2/systemsharedmemory/region/R/register", body) == (status, text)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({}, 400, "Shared memory register request has no 'raw_handle' field"),
        ({"raw_handle": {}}, 500, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": "x"}, 500, "attempt to access non-existing object member 'b64'"),
        ({"raw_handle": {"b64": 1}}, 500, "attempt to access JSON non-string as string"),
        ({"raw_handle": {"b64": ""}}, 500, "attempt to access non-existing object member 'byte_size'"),
        (
            {"raw_handle": {"b64": ""}, "byte_size": 1},
            500,
            "attempt to access non-existing object member 'device_id'",
        ),
        (
            {"raw_handle": {"b64": "AAAA"}, "byte_size": 1, "device_id": 0},
            400,
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
        (
            {"raw_handle": {"b64": "A"}, "byte_size": 1, "device_id": 0},
            400,
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
    ],
)
def test_a_bad_registration_of_a_gpu_s_memory_is_refused_in_triton_s_words(devices, body, status, text):
    with listeners_alone(server_of(devices=devices)) as addresses:
        assert asking(addresses)("POST", "/v2/cudasharedmemory/region/R/register", body) == (status, text)


def test_over_http_the_offset_may_be_left_out(ask, memory):
    path = "/v2/systemsharedmemory/region/a%20b"
    assert ask("POST", f"{path}/register", {"key": memory.key, "byte_size": 8}) == (200, b"")
    status, body = ask("GET", f"{path}/status")
    assert (status, json.loads(body)) == (
        200,
        [{"name": "a b", "key": memory.key, "offset": 0, "byte_size": 8}],
    )
    assert ask("POST", f"{path}/unregister", b"ignored") == (200, b"")


# 4.1 Registration


@pytest.mark.parametrize("key", ["", "/", "///"])
def test_a_key_is_more_than_slashes(face, protocol, key):
    text = f"cannot register shared memory region 'R' - invalid shm key '{key}'"
    assert face.register("R", key, 64) == refusal(protocol, "INVALID_ARG", text)


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_the_objects_of_triton_s_own_workers_can_t_be_registered(face, protocol, slashes):
    key = f"{slashes}triton_python_backend_shm_region_1"
    text = (
        f"cannot register shared memory region 'R' with key '{key}' as the key contains the reserved prefix "
        "'triton_python_backend_shm_region_'"
    )
    assert face.register("R", key, 64) == refusal(protocol, "INVALID_ARG", text)


def test_a_name_is_registered_once(face, protocol, memory):
    assert face.register("R", memory.key, 64) is None
    text = "shared memory region 'R' already in manager"
    assert face.register("R", memory.key, 64) == refusal(protocol, "ALREADY_EXISTS", text)
    # Looked at before the object is, and after the key.
    assert face.register("R", "/no-such-object", 64) == refusal(protocol, "ALREADY_EXISTS", text)
    assert face.register("R", "/", 64).text.endswith("invalid shm key '/'")
    assert face.unregister("R") is None
    assert face.register("R", memory.key, 64) is None


def test_one_object_may_be_registered_by_many_names(face, memory):
    assert face.register("b", memory.key, 64, PAGE) is None
    assert face.register("a", memory.name, PAGE) is None
    assert face.status() == [
        {"name": "a", "key": memory.name, "offset": 0, "byte_size": PAGE},
        {"name": "b", "key": memory.key, "offset": PAGE, "byte_size": 64},
    ]


@pytest.mark.parametrize(
    "key",
    [
        "/no-such-object",
        "/x/y",
        "../etc/passwd",
        "/../etc/passwd",
        "/.",
        "/..",
        "/" + "n" * 256,
        "/ü" * 2,
        "/a\0b",
    ],
)
def test_what_can_t_be_opened_is_refused(face, protocol, key):
    text = f"Unable to open shared memory region: '{key}'"
    assert face.register("R", key, 64) == refusal(protocol, "INTERNAL", text)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 4 * PAGE + 1), (4 * PAGE, 1), (PAGE, 2**64 - 1), (2**64 - PAGE, PAGE)]
)
def test_a_region_lies_within_its_object(face, protocol, memory, offset, nbytes):
    text = "failed to register shared memory region 'R': invalid args"
    assert face.register("R", memory.key, nbytes, offset) == refusal(protocol, "INVALID_ARG", text)


@pytest.mark.parametrize(("offset", "nbytes"), [(1, 64), (PAGE - 1, 64), (0, 0), (4 * PAGE, 0)])
def test_a_region_that_could_not_be_mapped_is_refused(face, protocol, memory, offset, nbytes):
    text = "failed to register shared memory region 'R': unable to process address spaceInvalid argument"
    assert face.register("R", memory.key, nbytes, offset) == refusal(protocol, "INVALID_ARG", text)


# 4.2 CUDA, by a GPU that is played


def test_memory_of_a_gpu_is_registered_told_and_unregistered(with_gpu, devices, protocol, memory):
    held = devices.memory[HANDLE, 3] = FakeMemory(256)
    assert with_gpu.register_cuda("C", HANDLE_64, 3, 128) is None
    assert with_gpu.status(cuda=True) == [{"name": "C", "device_id": 3, "byte_size": 128}]
    taken = refusal(protocol, "ALREADY_EXISTS", "shared memory region 'C' already in manager")
    assert with_gpu.register_cuda("C", HANDLE_64, 3, 128) == taken
    assert with_gpu.register("C", memory.key, 64) == taken
    other = "The region named 'C' is registered as CUDA shared memory, not system shared memory"
    assert with_gpu.status("C") == refusal(protocol, "NOT_FOUND", other)
    assert with_gpu.unregister("C") is None
    assert with_gpu.unregister() is None
    assert with_gpu.status("C", cuda=True) == [{"name": "C", "device_id": 3, "byte_size": 128}]
    assert with_gpu.unregister("C", cuda=True) is None
    assert with_gpu.status(cuda=True) == []
    assert held.closed == 1


def test_what_the_driver_refuses_is_invalid(with_gpu, devices, protocol):
    devices.memory[HANDLE, 0] = held = FakeMemory(256)
    unknown = refusal(protocol, "INVALID_ARG", "failed to register shared memory region: invalid args")
    assert with_gpu.register_cuda("C", HANDLE_64, 1, 128) == unknown
    longer = refusal(protocol, "INVALID_ARG", "failed to register shared memory region 'C': invalid args")
    assert with_gpu.register_cuda("C", HANDLE_64, 0, 257) == longer
    assert held.closed == 1


def test_memory_of_a_gpu_that_can_t_be_closed_is_told(with_gpu, devices, protocol):
    devices.memory[HANDLE, 0] = held = FakeMemory(256)
    for name in "ba":
        assert with_gpu.register_cuda(name, HANDLE_64, 0, 128) is None
    held.failure = "the driver is gone"
    text = "failed to close CUDA IPC handle: the driver is gone"
    assert with_gpu.unregister("a", cuda=True) == refusal(protocol, "INTERNAL", text)
    assert with_gpu.register_cuda("a", HANDLE_64, 0, 128) is None
    text = "Failed to unregister the following cuda shared memory regions: a ,b ,"
    assert with_gpu.unregister(cuda=True) == refusal(protocol, "INTERNAL", text)
    assert with_gpu.status(cuda=True) == []


# 5. Status and unregister


def test_an_unknown_region_has_no_status(face, protocol):
    for cuda, kind in ((False, "system"), (True, "cuda")):
        text = f"Unable to find {kind} shared memory region: 'R'"
        assert face.status("R", cuda=cuda) == refusal(protocol, "NOT_FOUND", text)


def test_a_region_of_the_other_kind_is_named_so(face, protocol, memory):
    assert face.register("R", memory.key, 64) is None
    text = "The region named 'R' is registered as system shared memory, not CUDA shared memory"
    assert face.status("R", cuda=True) == refusal(protocol, "NOT_FOUND", text)
    assert face.unregister("R", cuda=True) is None
    assert face.unregister(cuda=True) is None
    assert face.status("R") == [{"name": "R", "key": memory.key, "offset": 0, "byte_size": 64}]


def test_unregistering_what_is_not_there_succeeds(face):
    assert face.unregister("R") is None
    assert face.unregister() is None


# 6.1 Parameters


def add(place, other=None):
    return [
        Given(name="A", datatype="FP32", shape=[1, 16], place=place),
        Given(name="B", datatype="FP32", shape=[1, 16], place=other or place),
    ]


@pytest.fixture
def region(face, memory):
    assert face.register("R", memory.key, PAGE) is None
    memory.put(np.arange(32, dtype=np.float32).tobytes())
    return memory


@pytest.mark.parametrize(
    ("place", "code", "text"),
    [
        (Place(region="Q", nbytes=64), "NOT_FOUND", "Unable to find shared memory region: 'Q'"),
        (
            Place(region="R", nbytes=64, offset=PAGE),
            "INVALID_ARG",
            "Invalid offset for shared memory region: 'R'",
        ),
        (
            Place(region="R", nbytes=PAGE - 63, offset=64),
            "INVALID_ARG",
            "Invalid offset + byte size for shared memory region: 'R'",
        ),
    ],
)
@pytest.mark.parametrize("side", ["input", "output"])
def test_a_tensor_lies_within_a_registered_region(face, protocol, region, side, place, code, text):
    good = Place(region="R", nbytes=64)
    if side == "input":
        told = face.infer("add", add(good, place))
    else:
        told = face.infer("add", add(good), {"S": place})
    assert told == refusal(protocol, code, text)


def test_an_offset_and_a_size_that_overflow_are_told(ask, addresses, memory):
    face = face_at(addresses, "http")
    assert face.register("R", memory.key, PAGE) is None
    for nbytes, offset, text in (
        (
            2**64 - 1,
            1,
            "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds maximum value "
            "(18446744073709551615) for region 'R'",
        ),
        (2**64 - 1, 0, "Invalid offset + byte size for shared memory region: 'R'"),
        (1, 2**64 - 1, "Invalid offset for shared memory region: 'R'"),
    ):
        parameters = {
            "shared_memory_region": "R",
            "shared_memory_byte_size": nbytes,
            "shared_memory_offset": offset,
        }
        inputs = [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": parameters} for name in "AB"
        ]
        assert ask("POST", "/v2/models/add/infer", {"inputs": inputs}) == (400, text)
    assert face.unregister() is None
    face.close()


def test_a_negative_size_over_grpc_is_beyond_the_region(addresses, memory):
    face = face_at(addresses, "grpc")
    assert face.register("R", memory.key, PAGE) is None
    place = Place(region="R", nbytes=-1)
    text = "Invalid offset + byte size for shared memory region: 'R'"
    assert face.infer("add", add(place)) == refusal("grpc", "INVALID_ARG", text)
    place = Place(region="R", nbytes=64, offset=-1)
    text = "Invalid offset for shared memory region: 'R'"
    assert face.infer("add", add(place)) == refusal("grpc", "INVALID_ARG", text)
    assert face.unregister() is None
    face.close()


def test_an_input_has_the_bytes_of_its_shape(face, protocol, region):
    place = Place(region="R", nbytes=60)
    told = face.infer("add", add(Place(region="R", nbytes=64), place))
    text = (
        "[request id: <id_unknown>] input byte size mismatch for input 'B' for model 'add'. "
        "Expected 64, got 60"
    )
    assert told == refusal(protocol, "INVALID_ARG", text)


def http_input(**parameters):
    return {"name": "A", "datatype": "FP32", "shape": [1, 16], "parameters": parameters}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"shared_memory_region": 1},
            "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
        ),
        (
            {"shared_memory_region": "R", "shared_memory_offset": "0"},
            "Unable to parse 'shared_memory_offset': attempt to access JSON non-unsigned-integer as "
            "unsigned-integer",
        ),
        (
            {"shared_memory_region": "R", "shared_memory_byte_size": -1},
            "Unable to parse 'shared_memory_byte_size': attempt to access JSON non-unsigned-integer as "
            "unsigned-integer",
        ),
    ],
)
@pytest.mark.parametrize("side", ["input", "output"])
def test_parameters_have_types_over_http(ask, side, parameters, text):
    data = {"name": "B", "datatype": "FP32", "shape": [1, 16], "data": [0] * 16}
    if side == "input":
        body = {"inputs": [http_input(**parameters), data]}
    else:
        body = {"inputs": [{**data, "name": "A"}, data], "outputs": [{"name": "S", "parameters": parameters}]}
    assert ask("POST", "/v2/models/add/infer", body) == (500, text)


def test_over_http_a_size_that_is_left_out_is_none(ask, addresses, memory):
    face = face_at(addresses, "http")
    assert face.register("R", memory.key, PAGE) is None
    body = {
        "inputs": [
            http_input(shared_memory_region="R"),
            {**http_input(shared_memory_region="R"), "name": "B"},
        ]
    }
    assert ask("POST", "/v2/models/add/infer", body) == (
        400,
        "[request id: <id_unknown>] input byte size mismatch for input 'A' for model 'add'. Expected"
        " 64, got 0",
    )
    assert face.unregister() is None
    face.close()


def test_over_http_an_offset_without_a_region_is_ignored(ask):
    inputs = [
        {"name": name, "datatype": "FP32", "shape": [1, 16], "data": [1] * 16, "parameters": parameters}
        for name, parameters in (("A", {"shared_memory_offset": 8}), ("B", {"shared_memory_byte_size": "x"}))
    ]
    assert ask("POST", "/v2/models/add/infer", {"inputs": inputs})[0] == 200


@pytest.mark.parametrize(
    ("more", "parameters", "found"),
    [
        ({"data": [1]}, {}, "'data' 'shared_memory_region'"),
        ({}, {"binary_data_size": 64}, "'binary_data_size' 'shared_memory_region'"),
    ],
)
def test_over_http_an_input_has_one_source(ask, more, parameters, found):
    described = {**http_input(shared_memory_region="R", **parameters), **more}
    status, text = ask("POST", "/v2/models/add/infer", {"inputs": [described]})
    assert (status, text) == (
        400,
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But set {found}",
    )


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"classification": 1}, "Output can't set both 'shared_memory_region' and 'classification'"),
        ({"binary_data": True}, "Output can't set both 'shared_memory_region' and 'binary_data'"),
    ],
)
def test_over_http_an_output_goes_one_way(ask, parameters, text):
    data = {"datatype": "FP32", "shape": [1, 16], "data": [0] * 16}
    outputs = [{"name": "S", "parameters": {"shared_memory_region": "R", **parameters}}]
    body = {"inputs": [{"name": "A", **data}, {"name": "B", **data}], "outputs": outputs}
    assert ask("POST", "/v2/models/add/infer", body) == (400, text)


@pytest.fixture
def infer_over_grpc(addresses):
    """Send a ModelInferRequest; return the status's name and the text, or the answer."""
    with grpc.insecure_channel(addresses.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def infer(message):
            try:
                return stub.ModelInfer(message, timeout=10)
            except grpc.RpcError as error:
                return Refused(error.code().name, error.details())

        yield infer


def grpc_message(**parameters):
    message = service_pb2.ModelInferRequest(model_name="add")
    for name in "AB":
        message.inputs.add(name=name, datatype="FP32", shape=[1, 16])
    for key, (kind, value) in parameters.items():
        setattr(message.inputs[0].parameters[key], kind, value)
    message.raw_input_contents.extend([bytes(64)] * 2)
    return message


REGION = {"shared_memory_region": ("string_param", "R"), "shared_memory_byte_size": ("int64_param", 64)}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {**REGION, "shared_memory_region": ("bool_param", True)},
            "invalid value type for 'shared_memory_region' parameter for tensor 'A', expected string_param.",
        ),
        (
            {**REGION, "shared_memory_offset": ("uint64_param", 1)},
            "invalid value type for 'shared_memory_offset' parameter for tensor 'A', expected int64_param.",
        ),
        (
            {**REGION, "shared_memory_byte_size": ("string_param", "1")},
            "invalid value type for 'shared_memory_byte_size' parameter for tensor 'A', expected"
            " int64_param.",
        ),
        (
            {"shared_memory_offset": ("int64_param", 1)},
            "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for"
            " tensor 'A'",
        ),
        (
            {"shared_memory_byte_size": ("int64_param", 1)},
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter"
            " for tensor "
            "'A'",
        ),
        (
            {"shared_memory_region": ("string_param", "R")},
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter"
            " for tensor "
            "'A'",
        ),
    ],
)
def test_parameters_have_types_over_grpc(infer_over_grpc, parameters, text):
    message = grpc_message(**parameters)
    assert infer_over_grpc(message) == Refused("INVALID_ARGUMENT", text)
    asked = grpc_message()
    asked.outputs.add(name="A")
    for key in message.inputs[0].parameters:
        asked.outputs[0].parameters[key].CopyFrom(message.inputs[0].parameters[key])
    assert infer_over_grpc(asked) == Refused("INVALID_ARGUMENT", text)


def test_over_grpc_contents_and_a_region_exclude_each_other(infer_over_grpc):
    message = grpc_message(**REGION)
    message.inputs[0].contents.fp32_contents.extend([0.0] * 16)
    assert infer_over_grpc(message) == Refused(
        "INVALID_ARGUMENT",
        "unexpected 'content' provided when using shared memory for input tensor 'A' for model 'add'",
    )


def test_over_grpc_an_output_goes_one_way(infer_over_grpc):
    message = grpc_message()
    message.outputs.add(name="S")
    for key, (kind, value) in {**REGION, "classification": ("int64_param", 1)}.items():
        setattr(message.outputs[0].parameters[key], kind, value)
    assert infer_over_grpc(message) == Refused(
        "INVALID_ARGUMENT", "output can't set both 'shared_memory_region' and 'classification'"
    )


def test_over_grpc_an_input_in_a_region_takes_no_raw_contents(infer_over_grpc, addresses, memory):
    face = face_at(addresses, "grpc")
    assert face.register("R", memory.key, PAGE) is None
    memory.put(np.full(16, 2, np.float32).tobytes())
    for shared in (0, 1):
        for more in range(2):  # the second time, the message is known
            message = grpc_message()
            for key, (kind, value) in REGION.items():
                setattr(message.inputs[shared].parameters[key], kind, value)
            del message.raw_input_contents[:]
            message.raw_input_contents.append(np.full(16, 5 + more, np.float32).tobytes())
            message.raw_input_contents.append(b"surplus")
            answer = infer_over_grpc(message)
            assert np.frombuffer(answer.raw_output_contents[0], np.float32)[0] == 7 + more
            assert np.frombuffer(answer.raw_output_contents[1], np.float32)[0] == (3 + more) * (
                1 if shared else -1
            )
            del message.raw_input_contents[:]
            text = f"unable to find data for input tensor '{'BA'[shared]}' for model 'add' in request."
            assert infer_over_grpc(message) == Refused("INVALID_ARGUMENT", text)
    assert face.unregister() is None
    face.close()


# Limits, which are ours


def test_regions_are_limited_in_number_and_bytes(protocol, memory):
    server = server_of()
    server.regions.table.limits = RegionLimits(regions=3, nbytes=2 * PAGE)
    with listeners_alone(server) as addresses:
        face = face_at(addresses, protocol)
        assert face.register("a", memory.key, PAGE) is None
        assert face.register("b", memory.key, PAGE + 1) == refusal(
            protocol,
            "UNAVAILABLE",
            f"cannot register shared memory region 'b' of {PAGE + 1} bytes: registered regions have"
            f" {PAGE} bytes, "
            f"and the server allows {2 * PAGE} in all; unregister some, or see --client-shm-bytes",
        )
        assert face.register("b", memory.key, 64) is None
        assert face.register("c", memory.key, 64) is None
        assert face.register("d", memory.key, 64) == refusal(
            protocol,
            "UNAVAILABLE",
            "cannot register shared memory region 'd': 3 regions are registered, and the server allows"
            " no more; "
            "unregister some, or see --client-shm-regions",
        )
        assert face.unregister("a") is None
        assert face.register("d", memory.key, PAGE) is None
        face.close()
