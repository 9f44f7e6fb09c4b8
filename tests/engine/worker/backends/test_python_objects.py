"""What `triton_python_backend_utils` offers beside requests: constants, tables, errors and responses."""

import json

import numpy as np
import pytest

from actors.values.datatypes import DataType
from engine.worker.backends.python import triton_python_backend_utils as pb_utils
from engine.worker.backends.python.host import Host, attach

TABLE = {
    "TYPE_BOOL": (1, bool),
    "TYPE_UINT8": (2, np.uint8),
    "TYPE_UINT16": (3, np.uint16),
    "TYPE_UINT32": (4, np.uint32),
    "TYPE_UINT64": (5, np.uint64),
    "TYPE_INT8": (6, np.int8),
    "TYPE_INT16": (7, np.int16),
    "TYPE_INT32": (8, np.int32),
    "TYPE_INT64": (9, np.int64),
    "TYPE_FP16": (10, np.float16),
    "TYPE_FP32": (11, np.float32),
    "TYPE_FP64": (12, np.float64),
    "TYPE_STRING": (13, np.object_),
}


@pytest.mark.parametrize(("name", "number", "numpy"), [(name, *row) for name, row in TABLE.items()])
def test_each_datatype_has_its_number_and_its_numpy_type(name, number, numpy):
    assert pb_utils.triton_string_to_numpy(name) is numpy
    assert pb_utils.triton_to_numpy_type(number) is numpy
    assert pb_utils.numpy_to_triton_type(numpy) == number
    assert pb_utils.Tensor("T", np.zeros(1, numpy)).triton_dtype() == number


def test_fixed_width_bytes_are_strings_and_byte_order_does_not_matter():
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    assert pb_utils.Tensor("T", np.array([b"ab"])).triton_dtype() == 13
    assert pb_utils.Tensor("T", np.zeros(1, ">f4")).triton_dtype() == DataType.FP32.number


def test_constants_are_tritons():
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START == 1
    assert pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END == 2
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2
    assert pb_utils.TRITONSERVER_MEMORY_CPU is pb_utils.MemoryType.TRITONSERVER_MEMORY_CPU
    assert pb_utils.TRITONSERVER_MEMORY_GPU is pb_utils.MemoryType.TRITONSERVER_MEMORY_GPU
    assert issubclass(pb_utils.TritonModelException, Exception)


@pytest.mark.parametrize(
    "code",
    [
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "CANCELLED",
    ],
)
def test_an_error_keeps_its_text_and_its_code(code):
    error = pb_utils.TritonError("why", getattr(pb_utils.TritonError, code))
    assert (error.message(), error.code().name) == ("why", code)


def test_a_response_shows_what_it_was_given():
    tensor = pb_utils.Tensor("Y", np.ones(1))
    response = pb_utils.InferenceResponse([tensor], parameters={"i": 1, "b": True, "s": "x"})
    assert response.output_tensors() == [tensor]
    assert json.loads(response.parameters()) == {"i": 1, "b": True, "s": "x"}
    assert pb_utils.InferenceResponse().parameters() == "{}"
    failed = pb_utils.InferenceResponse([tensor], error=pb_utils.TritonError("no"))
    assert failed.has_error()
    assert failed.error().message() == "no"


def test_a_request_of_the_models_own_shows_what_it_was_given():
    tensor = pb_utils.Tensor("X", np.ones(1))
    request = pb_utils.InferenceRequest(
        request_id="i",
        correlation_id="seq",
        inputs=[tensor],
        requested_output_names=["Y"],
        model_name="m",
        flags=1,
        timeout=5,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 0),
        parameters={"a": 1},
    )
    shown = (request.request_id(), request.correlation_id(), request.flags(), request.timeout())
    assert shown == ("i", "seq", 1, 5)
    assert (request.inputs(), request.requested_output_names()) == ([tensor], ["Y"])
    assert json.loads(request.parameters()) == {"a": 1}
    assert not request.is_cancelled()


def test_only_elements_of_bytes_are_serialised():
    assert pb_utils.serialize_byte_tensor(np.array([b"ab", b"c"])) == b"\x02\0\0\0ab\x01\0\0\0c"
    assert pb_utils.serialize_byte_tensor(np.array([1, 2])) is None
    in_columns = np.array([["a", "b"], ["c", "d"]], object).T
    assert pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(in_columns)).tolist() == [
        b"a",
        b"c",
        b"b",
        b"d",
    ]


def test_a_log_line_says_where_it_comes_from():
    said = []
    attach(Host("/models/m/1", lambda level, text: said.append((level, text))))
    pb_utils.Logger.log("here", pb_utils.Logger.WARNING)
    [(level, text)] = said
    assert level == "warning"
    assert text.startswith("test_python_objects.py:")
    assert text.endswith("] here")


# -- what Triton takes and offers as well


def test_bytes_are_taken_for_text():
    tensor = pb_utils.Tensor(b"caf\xc3\xa9", np.zeros(1, "f4"))
    assert tensor.name() == "café"
    assert pb_utils.Tensor.from_dlpack(b"X", tensor).name() == "X"
    assert pb_utils.TritonError(b"no").message() == "no"
    request = pb_utils.InferenceRequest(
        request_id=b"r", inputs=[tensor], requested_output_names=[b"O", "P"], model_name=b"m"
    )
    assert (request.request_id(), request.requested_output_names()) == ("r", ["O", "P"])


@pytest.mark.parametrize(
    "given",
    [
        lambda: pb_utils.Tensor(b"\xff", np.zeros(1)),
        lambda: pb_utils.TritonError(b"\xff"),
        lambda: pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name=b"\xff"),
    ],
)
def test_bytes_that_are_no_text_are_refused(given):
    with pytest.raises(pb_utils.TritonModelException, match="is bytes that are no UTF-8"):
        given()


def test_bytes_for_a_name_must_not_be_empty_either():
    with pytest.raises(pb_utils.TritonModelException, match="Tensor name cannot be an empty string"):
        pb_utils.Tensor(b"", np.zeros(1))
    with pytest.raises(pb_utils.TritonModelException, match="Requested output name"):
        pb_utils.InferenceRequest(inputs=[], requested_output_names=[b""], model_name="m")


@pytest.mark.parametrize("parameters", [[], [("a", 1)], "a", 1])
def test_parameters_are_a_dictionary(parameters):
    with pytest.raises(
        pb_utils.TritonModelException, match="Expect parameters to have type dict, found type"
    ):
        pb_utils.InferenceResponse(parameters=parameters)
    with pytest.raises(
        pb_utils.TritonModelException, match="Expect parameters to have type dict, found type"
    ):
        pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m", parameters=parameters)


def test_the_table_of_types_is_there_to_be_read():
    assert {name: numpy for name, (_, numpy) in TABLE.items()} == pb_utils.TRITON_STRING_TO_NUMPY


def test_the_compiled_part_has_the_same_objects(python_model):
    backend, _ = python_model(
        """
        import c_python_backend_utils as compiled
        class TritonPythonModel:
            pass
        assert all(getattr(pb_utils, name) is getattr(compiled, name) for name in compiled.__all__ if hasattr(pb_utils, name))
        assert compiled.MetricFamily.COUNTER is compiled.MetricKind.COUNTER
        assert compiled.Logger.LogLevel.INFO is compiled.Logger.INFO
        compiled.Metric, compiled.ResponseIterator
        """
    )
    assert backend is not None
