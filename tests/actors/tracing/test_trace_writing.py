"""The objects of Triton's trace file (contract, observability.md section 3.2)."""

import json
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from actors.tracing.policy import writing
from actors.tracing.policy.writing import ESCAPED_AT_ONCE, in_words, objects_of
from actors.values.datatypes import DataType
from actors.values.tensors import pack_bytes
from actors.values.tracing.spans import (
    BACKEND_OUTPUT,
    DIED,
    FINISHED,
    HTTP_RECV_START,
    QUEUE_START,
    REQUEST_END,
    REQUEST_START,
    TAKEN_BACK,
    OwnSpan,
)
from actors.values.tracing.traces import FinishedTrace, Moment, TracedExecution, TracedRequest, TracedTensor


def request(number=1, *, parent=0, executions=(), tensors=(), moments=(), request_id="", own=()):
    return TracedRequest(
        id=number,
        parent_id=parent,
        relation="step" if parent else "",
        model_name="m",
        model_version=3,
        request_id=request_id,
        correlation_id=0,
        rows=1,
        error="",
        parts=1,
        w3c_id=9,
        moments=tuple(Moment(*each) for each in moments),
        executions=tuple(executions),
        tensors=tuple(tensors),
        own=tuple(own),
    )


def execution(outcome, *, start=10, reason=""):
    return TracedExecution(
        instance="m_0",
        pid=7,
        batch=1,
        requests=1,
        rows=1,
        outcome=outcome,
        reason=reason,
        dispatched_ns=start,
        started_ns=start + 1,
        input_end_ns=start + 2,
        output_start_ns=start + 3,
        ended_ns=start + 4,
    )


def written(*requests, moments=()):
    trace = FinishedTrace(
        setting=None,
        context=None,
        w3c_id=1,
        w3c_span=2,
        moments=tuple(Moment(*each) for each in moments),
        requests=requests,
        unkept=0,
    )
    return [json.loads(each) for each in objects_of(trace)]


def names(objects, number=1):
    return [
        each["timestamps"][0]["name"] for each in objects if each["id"] == number and "timestamps" in each
    ]


def test_a_request_has_a_header_and_an_object_for_each_timestamp_in_order():
    moments = [(REQUEST_START, 2), (QUEUE_START, 3), (REQUEST_END, 20)]
    told = written(
        request(request_id="r", moments=moments, executions=[execution(FINISHED)]),
        moments=[(HTTP_RECV_START, 1)],
    )
    assert told[0] == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "r"}
    assert told[1] == {"id": 1, "timestamps": [{"name": "HTTP_RECV_START", "ns": 1}]}
    assert names(told) == [
        "HTTP_RECV_START",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
    ]


def test_a_child_names_its_parent_and_has_none_of_the_frontends_timestamps():
    told = written(
        request(1), request(2, parent=1, moments=[(REQUEST_START, 5)]), moments=[(HTTP_RECV_START, 1)]
    )
    assert told[-2] == {"id": 2, "model_name": "m", "model_version": 3, "parent_id": 1}
    assert names(told, 2) == ["REQUEST_START"]
    assert [each["id"] for each in told] == [1, 1, 2, 2], "objects of one request stand together"


def test_of_a_request_that_ran_again_the_last_execution_and_the_deaths_are_told():
    runs = [
        execution(DIED, reason="signal 9"),
        execution(TAKEN_BACK, start=20),
        execution(FINISHED, start=30),
    ]
    told = written(request(executions=runs))
    assert names(told) == [
        "WORKER_DIED",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    assert told[2]["timestamps"] == [{"name": "COMPUTE_START", "ns": 31}]


@pytest.mark.parametrize("name", ["PLAIN_1", 'a "quoted" name', "é\n", ""])
def test_the_name_of_a_moment_may_be_any_text(name):
    assert written(request(moments=[(name, 7)]))[1] == {"id": 1, "timestamps": [{"name": name, "ns": 7}]}


def test_times_that_are_not_known_are_left_out():
    told = written(
        request(executions=[replace(execution(FINISHED), input_end_ns=None, output_start_ns=None)])
    )
    assert names(told) == ["COMPUTE_START", "COMPUTE_END"]


def test_a_tensor_is_an_object_of_its_own():
    data = np.array([1, 2, 3], np.float32).tobytes()
    told = written(request(tensors=[TracedTensor(BACKEND_OUTPUT, "A", DataType.FP32, (1, 3), data, 5)]))
    assert told[-1] == {
        "id": 1,
        "activity": "TENSOR_BACKEND_OUTPUT",
        "tensor": {"name": "A", "data": "1,2,3", "shape": "1,3", "dtype": "FP32"},
    }


def test_a_tensor_that_was_not_kept_has_no_data():
    told = written(request(tensors=[TracedTensor(BACKEND_OUTPUT, "A", DataType.FP32, (2,), None, 5)]))
    assert told[-1]["tensor"] == {"name": "A", "data": "", "shape": "2", "dtype": "FP32"}


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        (DataType.BOOL, bytes((1, 0)), "1,0"),
        (DataType.INT8, bytes((255, 2)), "-1,2"),
        (DataType.UINT64, struct.pack("<Q", 2**64 - 1), "18446744073709551615"),
        (DataType.FP16, np.array([0.5], np.float16).tobytes(), "0.5"),
        (DataType.FP32, np.array([0.1, -3], np.float32).tobytes(), "0.1,-3"),
        (DataType.FP64, np.array([1e300, np.inf]).tobytes(), "1e+300,inf"),
        (DataType.BF16, struct.pack("<H", 0x3FC0), "1.5"),
        (DataType.BYTES, pack_bytes([b"a", b"", b'q"']), '"a","","q""'),
        (DataType.BYTES, pack_bytes([b"\xff"]), r'"\xff"'),
        (DataType.FP32, b"", ""),
    ],
)
def test_elements_are_put_into_words(datatype, data, words):
    assert in_words(datatype, data) == words


def test_long_tensors_are_put_into_words_in_pieces():
    numbers = np.arange(5000, dtype=np.int32)
    assert in_words(DataType.INT32, numbers.tobytes()) == ",".join(map(str, range(5000)))


@pytest.mark.parametrize(
    "text", [b"\xff" * 100_000, "aé\u20ac\U0001f600".encode() * 10_000, b"a\xe2\x82" * 30_000]
)
def test_long_strings_are_read_piece_by_piece_as_if_at_once(text):
    """One call would hold the interpreter lock for 0.1 s and more if a MiB is no text."""
    taken = []

    class Data(bytes):
        def __getitem__(self, key):
            part = super().__getitem__(key)
            taken.append(len(part))
            return part

    words = in_words(DataType.BYTES, Data(pack_bytes([text])))
    assert words == '"' + text.decode("utf-8", "backslashreplace") + '"'
    assert max(taken) <= 16 * 1024


def test_strings_are_escaped_in_the_file():
    told = written(
        request(tensors=[TracedTensor(BACKEND_OUTPUT, "S", DataType.BYTES, (1,), pack_bytes([b"hi"]), 5)])
    )
    assert told[-1]["tensor"]["data"] == '"hi"'


def test_long_texts_are_escaped_in_pieces_as_if_at_once(monkeypatch):
    """One call for all would hold the lock of the interpreter, and with it the event loop."""
    text = 'a"\\\n\x00\x7f\u20ac\U0001f600' * (ESCAPED_AT_ONCE // 4)
    tensor = TracedTensor(BACKEND_OUTPUT, 'T"', DataType.BYTES, (1,), pack_bytes([text.encode()]), 5)
    longest = []

    def dumps(value, **options):
        longest.append(len(value) if isinstance(value, str) else 0)
        return json.dumps(value, **options)

    monkeypatch.setattr(writing, "json", SimpleNamespace(dumps=dumps))
    *_, found = written(request(tensors=[tensor]))
    assert found["tensor"]["data"] == f'"{text}"'
    assert found["tensor"]["name"] == 'T"'
    assert max(longest) == ESCAPED_AT_ONCE


def test_what_a_model_tells_of_itself_is_among_the_timestamps():
    """A span of its own is two of them."""
    own = [OwnSpan(0, "work", 11, 13, 77), OwnSpan(0, "FOUND", 12)]
    objects = written(request(executions=[execution(FINISHED, start=9)], own=own))
    assert names(objects) == [
        "COMPUTE_START",
        "work_START",
        "COMPUTE_INPUT_END",
        "FOUND",
        "COMPUTE_OUTPUT_START",
        "work_END",
        "COMPUTE_END",
    ]
