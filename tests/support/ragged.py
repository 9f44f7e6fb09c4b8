"""Models that take requests of different shapes in one batch, written into a repository.

`summing` models give SUM, the sum of each request's elements, and DOUBLE, its elements times two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onnx import TensorProto, helper

BATCHING: Final = "dynamic_batching { max_queue_delay_microseconds: 50000 }"
BATCH_INPUT: Final = (
    'batch_input { kind: %s target_name: "%s" data_type: TYPE_INT32 source_input: "X" }\n'
    'batch_output { target_name: "DOUBLE" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "X" }\n'
)
PORTS: Final = """
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] %s }
output { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "DOUBLE" data_type: TYPE_FP32 dims: [ -1 ] }
"""
PYTHON: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("SUM", x.sum(axis=1, keepdims=True)),
                pb_utils.Tensor("DOUBLE", x * 2),
            ]))
        return responses
"""


def configure(repository: Path, name: str, backend: str, text: str, scheduling: str = BATCHING) -> Path:
    """Write a configuration; return the version's directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: 8\n{text}\n{scheduling}\n'
    )
    return version


def graph_of(nodes, inputs, outputs, constants=()) -> bytes:
    """Return an ONNX model whose ports are (name, element type, shape), and whose constants are tensors."""
    taken, given = ([helper.make_tensor_value_info(*port) for port in side] for side in (inputs, outputs))
    graph = helper.make_graph(
        [helper.make_node(*node[:3], **node[3]) for node in nodes], "g", taken, given, [*constants]
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    content: bytes = model.SerializeToString()
    return content


def sums_of_each(name: str) -> list:
    """Return the nodes that give each request's sum of X as `name`; they take what `summing_constants` are."""
    return [
        # Sums up to each end, less those up to the end before.
        ("CumSum", ["X", "zero"], ["sums"], {}),
        ("Concat", ["nothing", "sums"], ["from_zero"], {"axis": 0}),
        ("Cast", ["ENDS"], ["ends"], {"to": TensorProto.INT64}),
        ("Gather", ["from_zero", "ends"], ["up_to"], {"axis": 0}),
        ("Slice", ["up_to", "one", "all"], ["later"], {}),
        ("Slice", ["up_to", "first", "last"], ["sooner"], {}),
        ("Sub", ["later", "sooner"], ["flat"], {}),
        ("Unsqueeze", ["flat", "one"], [name], {}),
    ]


def summing_onnx() -> bytes:
    """Return a graph that takes X flat, and ENDS, the elements before each request's end from 0 on."""
    return graph_of(
        [
            *sums_of_each("SUM"),
            ("Add", ["X", "X"], ["DOUBLE"], {}),
        ],
        [("X", TensorProto.FLOAT, ["n"]), ("ENDS", TensorProto.INT32, ["m"])],
        [("SUM", TensorProto.FLOAT, ["r", 1]), ("DOUBLE", TensorProto.FLOAT, ["n"])],
        summing_constants(),
    )


def summing_constants() -> list[TensorProto]:
    """Return the constants by which a graph sums up between ends."""
    return [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("nothing", TensorProto.FLOAT, [1], [0]),
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("all", TensorProto.INT64, [1], [2**31 - 1]),
        helper.make_tensor("first", TensorProto.INT64, [1], [0]),
        helper.make_tensor("last", TensorProto.INT64, [1], [-1]),
    ]


def padded_onnx() -> bytes:
    """Return a graph that takes X as [rows, length]."""
    return graph_of(
        [
            ("ReduceSum", ["X", "one"], ["SUM"], {"keepdims": 1}),
            ("Add", ["X", "X"], ["DOUBLE"], {}),
        ],
        [("X", TensorProto.FLOAT, ["n", "m"])],
        [("SUM", TensorProto.FLOAT, ["n", 1]), ("DOUBLE", TensorProto.FLOAT, ["n", "m"])],
        [helper.make_tensor("one", TensorProto.INT64, [1], [1])],
    )
