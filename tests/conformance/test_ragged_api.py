"""Requests of different shapes that share batches, through Triton's clients, against a real server.

Every answer is that of its request alone.
"""

import re
import warnings
from io import BytesIO
from queue import Queue
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from tests.support.flavours import PROCESSES
from tests.support.ragged import (
    BATCH_INPUT,
    BATCHING,
    PORTS,
    PYTHON,
    configure,
    graph_of,
    padded_onnx,
    summing_constants,
    summing_onnx,
    sums_of_each,
)
from tests.support.triton_inputs import inputs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent's and geventhttpclient's, while they are imported
    import tritonclient.grpc as grpc_client
    from tritonclient.utils import InferenceServerException

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
RAGGED = PORTS % "allow_ragged_batch: true"
CUT = (
    'parameters { key: "tritium.pad_to" value { string_value: "X:1=4,8" } }\n'
    'parameters { key: "tritium.pad_outputs" value { string_value: "%s:1=X:1" } }\n'
)
PADDED = PORTS % "" + CUT % "DOUBLE"
NAMES = {"onnxruntime": "model.onnx", "pytorch": "model.pt", "python": "model.py"}
# A sequence sums up: SUM = what it had + the elements of the request, by a state. READY is 0 in empty slots.
SEQUENCE = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }
output { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "DOUBLE" data_type: TYPE_FP32 dims: [ -1 ] }
batch_output { target_name: "DOUBLE" source_input: "X" }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "ENDS" data_type: TYPE_INT32 source_input: "X"
}
sequence_batching {
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
  state {
    input_name: "HAD" output_name: "HAS" data_type: TYPE_FP32 dims: [ 1 ]
    initial_state { name: "begin" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
  }
  max_sequence_idle_microseconds: 20000000
  %s
}
"""


class Segments(torch.nn.Module):
    def forward(self, X: torch.Tensor, N: torch.Tensor):
        sizes: list[int] = N.to(torch.int64).tolist()
        sums = [part.sum() for part in torch.split(X, sizes)]
        return torch.stack(sums).reshape(-1, 1), X * 2


def sequence_onnx():
    return graph_of(
        [
            *sums_of_each("own"),
            ("Add", ["own", "HAD"], ["total"], {}),
            ("Mul", ["total", "READY"], ["HAS"], {}),
            ("Identity", ["HAS"], ["SUM"], {}),
            ("Add", ["X", "X"], ["DOUBLE"], {}),
        ],
        [
            ("X", TensorProto.FLOAT, ["n"]),
            ("ENDS", TensorProto.INT32, ["m"]),
            ("READY", TensorProto.FLOAT, ["r", 1]),
            ("HAD", TensorProto.FLOAT, ["r", 1]),
        ],
        [
            ("SUM", TensorProto.FLOAT, ["r", 1]),
            ("HAS", TensorProto.FLOAT, ["r", 1]),
            ("DOUBLE", TensorProto.FLOAT, ["n"]),
        ],
        summing_constants(),
    )


def padded_sequence_onnx():
    return graph_of(
        [
            ("ReduceSum", ["X", "one"], ["own"], {"keepdims": 1}),
            ("Add", ["own", "HAD"], ["total"], {}),
            ("Mul", ["total", "READY"], ["HAS"], {}),
            ("Identity", ["HAS"], ["SUM"], {}),
            ("Add", ["X", "X"], ["DOUBLE"], {}),
        ],
        [
            ("X", TensorProto.FLOAT, ["r", "n"]),
            ("READY", TensorProto.FLOAT, ["r", 1]),
            ("HAD", TensorProto.FLOAT, ["r", 1]),
        ],
        [
            ("SUM", TensorProto.FLOAT, ["r", 1]),
            ("HAS", TensorProto.FLOAT, ["r", 1]),
            ("DOUBLE", TensorProto.FLOAT, ["r", "n"]),
        ],
        summing_constants(),
    )


def twice_onnx(*shape):
    """Return a graph whose Y is each text of X, twice."""
    port = ("X", TensorProto.STRING, shape), ("Y", TensorProto.STRING, shape)
    return graph_of([("StringConcat", ["X", "X"], ["Y"], {})], port[:1], port[1:])


TEXTS = (
    'input { name: "X" data_type: TYPE_STRING dims: [ -1 ] %s }\n'
    'output { name: "Y" data_type: TYPE_STRING dims: [ -1 ] }\n'
)
FUNCTION = """
import tritium
from tritium import FP32, Array
from typing import NamedTuple

class Answer(NamedTuple):
    SUM: FP32[Array, 1]
    DOUBLE: FP32[Array, -1]

@tritium.model(max_batch_size=8)
def summing(X: FP32[Array, -1]) -> Answer:
    return Answer(X.sum(axis=1, keepdims=True), X * 2)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ragged")

    def write(name, backend, text, content, scheduling=BATCHING):
        path = configure(folder, name, backend, text, scheduling) / NAMES[backend]
        path.write_bytes(content if isinstance(content, bytes) else dedent(content).encode())

    ends = BATCH_INPUT % ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", "ENDS")
    write("ragged_onnx", "onnxruntime", RAGGED + ends, summing_onnx())
    counts = BATCH_INPUT % ("BATCH_ELEMENT_COUNT", "N")
    script = BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(Segments()), script)
    write("ragged_torch", "pytorch", RAGGED + counts, script.getvalue())
    write("ragged_python", "python", RAGGED, PYTHON)
    write("ragged_function", "python", RAGGED, FUNCTION)
    write("padded_onnx", "onnxruntime", PADDED, padded_onnx())
    write("padded_python", "python", PADDED, PYTHON)
    write("padded_function", "python", PADDED, FUNCTION)
    in_thread = 'parameters { key: "tritium.isolation" value { string_value: "thread" } }\n'
    write("padded_in_thread", "onnxruntime", PADDED + in_thread, padded_onnx())
    scattered = 'batch_output { target_name: "Y" source_input: "X" }\n'
    write("ragged_text", "onnxruntime", TEXTS % "allow_ragged_batch: true" + scattered, twice_onnx("n"))
    write("padded_text", "onnxruntime", TEXTS % "" + CUT % "Y", twice_onnx("n", "m"))
    for strategy in ("direct", "oldest"):
        text = SEQUENCE % f"{strategy} {{ }}"
        write(f"sequence_{strategy}", "onnxruntime", text, sequence_onnx(), "")
        text = re.sub("(?s)allow_ragged_batch: true|batch_(input|output) {.*?}", "", text)
        text += CUT % "DOUBLE"
        write(f"padded_sequence_{strategy}", "onnxruntime", text, padded_sequence_onnx(), "")
    for step in ("ragged_onnx", "padded_onnx"):
        (folder / f"ensemble_{step}" / "1").mkdir(parents=True)
        (folder / f"ensemble_{step}" / "config.pbtxt").write_text(
            f'name: "ensemble_{step}" platform: "ensemble" max_batch_size: 8 {PORTS % ""}'
            f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1'
            ' input_map { key: "X" value: "X" } output_map { key: "SUM" value: "SUM" }'
            ' output_map { key: "DOUBLE" value: "DOUBLE" } } }'
        )
    return folder


@pytest.fixture(scope="module")
def client(repository):
    with (
        PROCESSES["tritium-serve"](repository) as addresses,
        grpc_client.InferenceServerClient(addresses.grpc) as client,
    ):
        yield client


def together(client, model, arrays, options=None):
    """Send all of `arrays` at once, each with its options; return the answers in their order."""
    answers: Queue[Any] = Queue()
    for index, x in enumerate(arrays):
        client.async_infer(
            model,
            inputs(grpc_client, X=x),
            callback=lambda result, error, index=index: answers.put((index, result, error)),
            **(options[index] if options else {}),
        )
    got = [answers.get(timeout=60) for _ in arrays]
    for _, _, error in got:
        if error is not None:
            raise error
    return [result for _, result, _ in sorted(got, key=lambda each: each[0])]


def executions(client, model):
    [statistics] = client.get_inference_statistics(model, as_json=True)["model_stats"]
    return int(statistics.get("execution_count", 0)), int(statistics.get("inference_count", 0))


MODELS = [
    "ragged_onnx",
    "ragged_torch",
    "ragged_python",
    "ragged_function",
    "padded_onnx",
    "padded_python",
    "padded_function",
    "padded_in_thread",
    "ensemble_ragged_onnx",
    "ensemble_padded_onnx",
]


@pytest.mark.parametrize("model", MODELS)
def test_every_answer_is_that_of_its_request_alone(client, model):
    random = np.random.default_rng(7)
    arrays = [random.integers(-9, 9, (1, random.integers(1, 9))).astype("f4") for _ in range(64)]
    for x, answer in zip(arrays, together(client, model, arrays), strict=True):
        assert answer.as_numpy("SUM").tolist() == [[x.sum()]]
        assert answer.as_numpy("DOUBLE").tolist() == (2 * x).tolist()


@pytest.mark.parametrize("model", ["ragged_onnx", "ragged_torch", "padded_onnx", "padded_function"])
def test_requests_of_different_shapes_share_batches(client, model):
    before = executions(client, model)
    together(client, model, [np.ones((1, size), "f4") for size in range(1, 9)] * 4)
    after = executions(client, model)
    assert after[1] - before[1] == 32
    assert after[0] - before[0] < 24  # on their own, hardly two of them would


@settings(deadline=None, max_examples=15)
@given(
    st.sampled_from(["padded_onnx", "padded_python"]),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8)), min_size=1, max_size=12),
)
def test_padded_requests_of_several_rows_get_their_own_sizes_back(client, model, shapes):
    arrays = [np.random.default_rng(at).integers(1, 9, shape).astype("f4") for at, shape in enumerate(shapes)]
    for x, answer in zip(arrays, together(client, model, arrays), strict=True):
        assert answer.as_numpy("SUM").ravel().tolist() == x.sum(axis=1).tolist()
        assert answer.as_numpy("DOUBLE").shape == x.shape
        assert (answer.as_numpy("DOUBLE") == 2 * x).all()


def test_requests_of_different_buckets_run_apart(client):
    before = executions(client, "padded_onnx")
    together(client, "padded_onnx", [np.ones((1, size), "f4") for size in (3, 8)])
    after = executions(client, "padded_onnx")
    assert (after[0] - before[0], after[1] - before[1]) == (2, 2)


def test_a_request_longer_than_the_largest_bucket_is_refused(client):
    with pytest.raises(InferenceServerException) as error:
        client.infer("padded_onnx", inputs(grpc_client, X=np.ones((1, 9), "f4")))
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert error.value.message() == (
        "[request id: <id_unknown>] dimension 1 of input 'X' for model 'padded_onnx' is 9, more than the 8"
        " that it is padded to"
        " (tritium.pad_to). Send at most 8."
    )


@pytest.mark.parametrize("model", ["ragged_text", "padded_text"])
def test_text_of_different_lengths_shares_batches(client, model):
    rows = [[b"a"], [b"bc", b""], [b"d"] * 5, [b""], [b"\xc3\xa9"] * 3]
    answers = together(client, model, [np.array([row], object) for row in rows])
    assert [answer.as_numpy("Y").tolist() for answer in answers] == [
        [[2 * each for each in row]] for row in rows
    ]


@pytest.mark.parametrize(
    "model", ["sequence_direct", "sequence_oldest", "padded_sequence_direct", "padded_sequence_oldest"]
)
def test_sequences_of_different_shapes_keep_their_sums(client, model):
    lengths = {1: [3, 1, 4], 2: [1, 5], 3: [2, 2, 2, 2]}
    sums = dict.fromkeys(lengths, 0.0)
    for step in range(4):
        running = [each for each in lengths if step < len(lengths[each])]
        options = [
            {
                "sequence_id": each,
                "sequence_start": step == 0,
                "sequence_end": step == len(lengths[each]) - 1,
            }
            for each in running
        ]
        arrays = [np.full((1, lengths[each][step]), each, "f4") for each in running]
        for each, x in zip(running, arrays, strict=True):
            sums[each] += x.sum()
        results = together(client, model, arrays, options)
        assert [result.as_numpy("SUM").item() for result in results] == [sums[each] for each in running]
        for x, result in zip(arrays, results, strict=True):
            assert result.as_numpy("DOUBLE").tolist() == (2 * x).tolist()
