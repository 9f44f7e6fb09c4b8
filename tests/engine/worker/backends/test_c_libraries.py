"""A library written for Triton's C API runs here: what it reads, what it answers, and what is refused."""

import numpy as np
import pytest

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.testing import LocalBatch, LocalRequest, model_info, run
from engine.worker.native.backend import NativeBackend
from engine.worker.native.library import SHIM
from tests.support.native.compiling import library, shim

pytestmark = pytest.mark.system  # the library is compiled at first use

FP32, INT32, BYTES = DataType.FP32, DataType.INT32, DataType.BYTES
IN = [TensorInfo("IN", FP32, [-1])]
OUT = [TensorInfo("OUT", FP32, [-1])]
TOLD = [TensorInfo("TOLD", BYTES, [1])]


class Libraries:
    """Loads models of the test backend, and ends them."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._loaded: list[NativeBackend] = []

    def info(self, does, inputs=IN, outputs=OUT, *, max_batch_size=8, config=None, settings=None, **options):
        written = {
            "backend": "doing",
            "max_batch_size": max_batch_size,
            "parameters": {"does": {"string_value": does}},
            **(config or {}),
        }
        return model_info(
            "/models/model/3",
            inputs=inputs,
            outputs=outputs,
            max_batch_size=max_batch_size,
            artifact=str(library()),
            config=written,
            settings={SHIM: shim(), **(settings or {})},
            log=lambda level, line: self.lines.append((level, line)),
            **options,
        )

    def __call__(self, does, *args, **options):
        info = self.info(does, *args, **options)
        backend = NativeBackend()
        backend.load(info)
        self._loaded.append(backend)
        return backend, info

    def end(self):
        while self._loaded:
            self._loaded.pop().unload()


@pytest.fixture
def load():
    libraries = Libraries()
    yield libraries
    libraries.end()
    assert not [line for level, line in libraries.lines if level == "warning"]


def rows(*sizes, start=1.0):
    return [LocalRequest({"IN": np.full((size, 3), start + at, "f4")}) for at, size in enumerate(sizes)]


def text_of(answer):
    assert answer.code is None, answer.message
    return answer.outputs["TOLD"].ravel()[0].decode().splitlines()


@pytest.mark.parametrize("dims", [[3], [-1]], ids=["known size", "any size"])
@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 2, 4)])
def test_each_request_of_a_batch_gets_its_own_rows(load, dims, sizes):
    backend, info = load("double", outputs=[TensorInfo("OUT", FP32, dims)])
    for _ in range(3):  # the room for outputs of any size is learned
        requests = rows(*sizes)
        for request, answer in zip(requests, run(backend, info, requests), strict=True):
            np.testing.assert_array_equal(answer.outputs["OUT"], 2 * request.inputs["IN"])


def test_a_request_that_fails_costs_only_itself(load):
    backend, info = load("double")
    requests = rows(1, 1, 2)
    requests[1] = LocalRequest({"IN": np.array([[-1, 0, 0]], "f4")})
    good, bad, other = run(backend, info, requests)
    assert (bad.code, bad.message) == (ErrorCode.INVALID_ARG, "the first element is negative")
    np.testing.assert_array_equal(good.outputs["OUT"], 2 * requests[0].inputs["IN"])
    np.testing.assert_array_equal(other.outputs["OUT"], 2 * requests[2].inputs["IN"])


def test_an_answer_may_come_after_execute_has_returned(load):
    backend, info = load("double")
    [answer] = run(backend, info, [LocalRequest({"IN": np.array([[2000, 1]], "f4")})])
    np.testing.assert_array_equal(answer.outputs["OUT"], [[4000, 2]])


def test_a_request_that_is_released_without_an_answer_gets_an_error(load):
    backend, info = load("double")
    silent, answered = run(
        backend,
        info,
        [
            LocalRequest({"IN": np.array([[1000]], "f4")}),
            *rows(1)[:0],
            LocalRequest({"IN": np.array([[4]], "f4")}),
        ],
    )
    assert silent.code is ErrorCode.INTERNAL
    assert "released the request without a response" in silent.message
    np.testing.assert_array_equal(answered.outputs["OUT"], [[8]])


def test_an_error_of_execute_is_that_of_all_requests(load):
    backend, info = load("refuse")
    for answer in run(backend, info, rows(1, 2)):
        assert (answer.code, answer.message) == (ErrorCode.UNAVAILABLE, "not now")


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (0, "output 'OUT' has a buffer of 4 bytes; its shape needs 16"),
        (1, "output 'OUT' was sent without a buffer"),
    ],
)
def test_an_output_that_does_not_fit_its_shape_is_an_error(load, odd, said):
    backend, info = load(f"odd{odd}")
    [answer] = run(backend, info, [LocalRequest({"IN": np.zeros((1, 4), "f4")})])
    assert (answer.code, answer.message) == (ErrorCode.INTERNAL, said)


def test_an_output_that_is_not_declared_is_left_out(load):
    backend, info = load("odd2")
    [answer] = run(backend, info, [LocalRequest({"IN": np.zeros((1, 4), "f4")})])
    assert answer.code is None
    assert not answer.outputs


def test_a_library_reads_all_that_a_request_carries(load):
    backend, info = load(
        "tell",
        [TensorInfo("IN", FP32, [-1]), TensorInfo("WORDS", BYTES, [2])],
        TOLD,
        settings={"colour": "blue", "default-max-batch-size": "16"},
    )
    first = LocalRequest(
        {"IN": np.zeros((2, 3), "f4"), "WORDS": np.array([[b"a", b"bc"], [b"", b"d"]], object)},
        id="one",
        correlation_id=2**64 - 1,
        flags=3,
        timeout=70,
        parameters={"name": "näme", "count": -5, "on": True, "off": False, "share": 0.25},
    )
    second = LocalRequest(
        {"IN": np.zeros((1, 3), "f4"), "WORDS": np.array([[b"xyz", b""]], object)}, correlation_id="seq"
    )
    told, other = (text_of(answer) for answer in run(backend, info, [first, second]))
    assert told[0] == "api 1.19"
    assert told[1] == "backend doing"
    assert '"colour": "blue"' in told[2]
    assert '"default-max-batch-size": "16"' in told[2]
    assert "shim" not in told[2]
    assert told[3:] == [
        "model model 3",
        "id 'one'",
        "correlation 18446744073709551615",
        "flags 3 timeout 70",
        "parameter name 'näme'",
        "parameter count -5",
        "parameter on true",
        "parameter off false",
        "parameter share 0.25",
        "wanted TOLD",
        "input IN type 11 bytes 24 buffers 1 shape 2 3",
        "input WORDS type 13 bytes 20 buffers 1 shape 2 2",
    ]
    assert other[4:] == [
        "id ''",
        "correlation: Invalid argument: correlation ID in request is not an unsigned int",
        "correlation 'seq'",
        "flags 0 timeout 0",
        "wanted TOLD",
        "input IN type 11 bytes 12 buffers 1 shape 1 3",
        "input WORDS type 13 bytes 11 buffers 1 shape 1 2",
    ]


def test_what_is_not_there_fails_with_its_name_and_nulls_with_an_error(load):
    backend, info = load("misuse", outputs=TOLD)
    [answer] = run(backend, info, [LocalRequest({"IN": np.zeros((1, 1), "f4")})])
    told = dict(line.split(": ", 1) for line in text_of(answer) if ": " in line)
    assert told["refused"] == "Unsupported: TRITONSERVER_ServerInferAsync is not provided by this server"
    assert told["unknown input"] == "Invalid argument: unknown request input name NONE"
    assert "handle null" in text_of(answer)
    for out_of_bounds in ("input 7", "output 7", "parameter 7", "buffer 1"):
        assert told[out_of_bounds].startswith("Invalid argument: out of bounds index")
    assert told["GPU"] == "Unsupported: there is no memory of type GPU here, only CPU memory"
    assert told["pinned"] == "Unsupported: there is no memory of type CPU_PINNED here, only CPU memory"
    assert told["CPU"] == "fine"
    assert told["reschedule"].startswith("Unsupported: ")
    assert told["config 2"].startswith("Unsupported: ")
    nulls = [said for what, said in told.items() if what.startswith("null ")]
    assert len(nulls) == 8
    assert all(said.startswith("Invalid argument: ") and "is null" in said for said in nulls)
    assert "null error '' 0" in text_of(answer)
    assert told["negative"] == "Invalid argument: output 'OUT' has a dimension of -1"
    assert told["no type"] == "Invalid argument: output 'OUT' has the unknown datatype 77"
    assert told["twice"] == "Already exists: the response has output 'OUT' already"


# -- decoupled models


def streams(load, *wanted):
    backend, info = load(
        "stream",
        [TensorInfo("IN", INT32, [1])],
        [TensorInfo("OUT", INT32, [1])],
        max_batch_size=0,
        decoupled=True,
    )
    requests = [LocalRequest({"IN": np.array([each], "i4")}) for each in wanted]
    for request in requests:
        run(backend, info, [request])
    return requests


def test_a_decoupled_model_answers_any_number_of_times(load):
    requests = streams(load, 3, 0, 20)
    for request, count in zip(requests, (3, 0, 20), strict=True):
        assert request.ended.wait(10)
        assert [part.outputs["OUT"].tolist() for part in request.parts] == [[at] for at in range(count)]
        assert [part.parameters for part in request.parts] == [{"at": at} for at in range(count)]


def test_an_error_ends_a_stream(load):
    [request] = streams(load, -1)
    assert request.ended.wait(10)
    [part] = request.parts
    assert (part.code, part.message) == (ErrorCode.NOT_FOUND, "no stream")


def test_a_stream_without_its_end_is_ended_with_an_error(load):
    [request] = streams(load, 99)
    assert request.ended.wait(10)
    assert len(request.parts) == 100
    assert request.parts[-1].code is ErrorCode.INTERNAL


def test_execute_of_a_decoupled_model_may_refuse(load):
    backend, info = load("refuse", decoupled=True)
    requests = rows(1, 1)
    run(backend, info, requests)
    for request in requests:
        assert request.ended.wait(10)
        assert [(part.code, part.message) for part in request.parts] == [(ErrorCode.UNAVAILABLE, "not now")]


# -- instances, life and logs


def test_each_lane_is_an_instance_with_a_thread_of_its_own(load):
    backend, info = load("double", lanes=3)
    lines = [line.partition("] ")[2] for _, line in load.lines]
    assert lines == [
        "instance 'model_0_0' begins",
        "instance 'model_0_0_1' begins",
        "instance 'model_0_0_2' begins",
    ]
    for _ in range(4):
        [answer] = run(backend, info, rows(1))
        np.testing.assert_array_equal(answer.outputs["OUT"], [[2, 2, 2]])


def test_the_model_is_finalised_and_a_library_can_be_loaded_again(load):
    for _ in range(3):
        load("double")
        load.end()
        assert load.lines[-1] == ("info", "doing.c:") or load.lines[-1][1].endswith("the model is finalised")


def test_readiness_is_the_instances_own(load):
    ready, _ = load("double")
    never, _ = load("never_ready")
    assert ready.has_check()
    assert ready.ready()
    assert not never.ready()


def test_a_model_that_can_not_be_initialised_says_why(load):
    with pytest.raises(LoadError, match=r"^this model can't be loaded$"):
        load("fail_at_load")


def test_isolation_in_a_thread_is_refused(load):
    with pytest.raises(LoadError, match=r"C library, whose crash would be the server's"):
        load("double", parameters={"tritium.isolation": "thread"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is no ELF file"),
        (b"\x7fELF" + bytes(200), "it is not for this machine"),
        (None, "can't be read"),
    ],
)
def test_a_file_that_is_no_library_is_told(load, tmp_path, content, said):
    path = tmp_path / "libtriton_doing.so"
    if content is not None:
        path.write_bytes(content)
    info = load.info("double")
    info.artifact = str(path)
    with pytest.raises(LoadError, match=said):
        NativeBackend().load(info)


def test_a_library_without_execute_is_none_of_a_backend(load):
    info = load.info("double")
    info.artifact = shim()
    with pytest.raises(LoadError, match="it has no function 'TRITONBACKEND_ModelInstanceExecute'"):
        NativeBackend().load(info)


def test_a_library_completes_its_configuration(load):
    empty: dict[str, list[object]] = {"input": [], "output": []}
    completed = NativeBackend.complete_config(load.info("double", [], [], config=empty))
    assert completed is not None
    assert completed["max_batch_size"] == 4
    assert [tensor["name"] for tensor in completed["output"]] == ["OUT"]
    assert NativeBackend.complete_config(load.info("double", config={"input": [{"name": "IN"}]})) is None


def test_inputs_are_read_where_they_are(load):
    # One batch, whose memory the library has until it lets go: no copy is made of what is in there.
    backend, info = load("double")
    batch = LocalBatch(info, rows(2, 1))
    [raw] = batch.raw.inputs()
    assert raw.parts == [((2, 3), 24), ((1, 3), 12)]
    backend.execute(batch)
    assert [request.answer is not None and request.answer.code for request in batch.requests] == [None] * 2
