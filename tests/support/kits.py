"""The same few models for each backend that runs models of any kind.

A `Kit` writes them. `tests.conformance.test_backends` runs them in the test's process,
`tests.conformance.test_every_backend` by a server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from textwrap import dedent

import numpy as np
import onnx
import openvino
import torch
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as ops

from actors.values.datatypes import DataType
from engine.worker.backends.openvino.ports import DATATYPES as OPENVINO_DATATYPES

ONNX_TYPES = {
    DataType.FP16: "FLOAT16",
    DataType.FP32: "FLOAT",
    DataType.FP64: "DOUBLE",
    DataType.BF16: "BFLOAT16",
    DataType.BYTES: "STRING",
}
# Of the small network: multiples of a quarter, so that every order of adding gives the same sums.
WEIGHTS = ((np.arange(12).reshape(4, 3) * 7 % 5 - 2) / 4).astype(np.float32)
OPENVINO_TYPES = {datatype: name for name, datatype in OPENVINO_DATATYPES.items()}


class Kit(ABC):
    """Makes the same few models for one backend; each method writes one into `directory`."""

    backend: str  # module:class, as in the entry point
    framework: str  # a module that importing the backend must not import
    has_text = True
    # Datatypes in which it computes with those of half the size, whatever the model says.
    narrowed: tuple[DataType, ...] = ()
    text_dims: tuple[int, ...] = (-1,)  # of a BYTES tensor, as far as the framework allows

    @abstractmethod
    def add_sub(self, directory: Path) -> None:
        """SUM = A + B and DIFFERENCE = A - B, rows of 3 FP32, any number of rows."""

    @abstractmethod
    def identity(self, directory: Path, datatype: DataType, *, rank: int) -> None:
        """Y = X, `rank` dimensions of any size."""

    @abstractmethod
    def select(self, directory: Path) -> None:
        """Y = A[row, I[row]]; an index out of range fails its request.

        A: rows of 3 FP32, I and Y: rows of 1.
        """

    @abstractmethod
    def network(self, directory: Path) -> None:
        """SCORE = relu(ROW · WEIGHTS), rows of 4 and of 3 FP32, any number of rows."""


class Onnx(Kit):
    """ONNX Runtime."""

    backend = "engine.worker.backends.onnxruntime:OnnxRuntimeBackend"
    framework = "onnxruntime"

    def save(self, directory, nodes, inputs, outputs, constants=()):
        taken, given = (
            [
                helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)
                for name, kind, shape in side
            ]
            for side in (inputs, outputs)
        )
        graph = helper.make_graph(
            [helper.make_node(*node, **more) for *node, more in nodes], "g", taken, given, constants
        )
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        onnx.save(model, directory / "model.onnx")

    def add_sub(self, directory):
        self.save(
            directory,
            [("Add", ["A", "B"], ["SUM"], {}), ("Sub", ["A", "B"], ["DIFFERENCE"], {})],
            [("A", "FLOAT", ["n", 3]), ("B", "FLOAT", ["n", 3])],
            [("SUM", "FLOAT", ["n", 3]), ("DIFFERENCE", "FLOAT", ["n", 3])],
        )

    def identity(self, directory, datatype, *, rank):
        kind = ONNX_TYPES.get(datatype, datatype.name)
        shape = [f"d{i}" for i in range(rank)]
        self.save(directory, [("Identity", ["X"], ["Y"], {})], [("X", kind, shape)], [("Y", kind, shape)])

    def select(self, directory):
        self.save(
            directory,
            [("GatherElements", ["A", "I"], ["Y"], {"axis": 1})],
            [("A", "FLOAT", ["n", 3]), ("I", "INT64", ["n", 1])],
            [("Y", "FLOAT", ["n", 1])],
        )

    def network(self, directory):
        self.save(
            directory,
            [("MatMul", ["ROW", "W"], ["SUMS"], {}), ("Relu", ["SUMS"], ["SCORE"], {})],
            [("ROW", "FLOAT", ["n", 4])],
            [("SCORE", "FLOAT", ["n", 3])],
            [numpy_helper.from_array(WEIGHTS, "W")],
        )


class AddSub(torch.nn.Module):
    """Sum and difference."""

    def forward(self, A: torch.Tensor, B: torch.Tensor):
        return A + B, A - B


class Identity(torch.nn.Module):
    """A tensor."""

    def forward(self, X: torch.Tensor):
        return X


class Text(torch.nn.Module):
    """A list of text."""

    def forward(self, X: list[str]) -> list[str]:
        return X


class Select(torch.nn.Module):
    """One element a row."""

    def forward(self, A: torch.Tensor, I: torch.Tensor):  # noqa: E741
        return torch.gather(A, 1, I)


class Network(torch.nn.Module):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.from_numpy(WEIGHTS.copy()))

    def forward(self, ROW: torch.Tensor):
        return torch.relu(ROW @ self.weights)


class TorchScript(Kit):
    """PyTorch."""

    backend = "engine.worker.backends.pytorch:PyTorchBackend"
    framework = "torch"
    text_dims: tuple[int, ...] = ()

    def add_sub(self, directory):
        torch.jit.script(AddSub()).save(directory / "model.pt")

    def identity(self, directory, datatype, *, rank):
        torch.jit.script(Text() if datatype is DataType.BYTES else Identity()).save(directory / "model.pt")

    def select(self, directory):
        torch.jit.script(Select()).save(directory / "model.pt")

    def network(self, directory):
        torch.jit.script(Network()).save(directory / "model.pt")


class Python(Kit):
    """Python models."""

    backend = "engine.worker.backends.python.backend:PythonBackend"
    framework = "asyncio"

    def save(self, directory, body):
        source = (
            "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\nclass"
            " TritonPythonModel:\n"
            "    def execute(self, requests):\n        return [self.answer(request) for request in"
            " requests]\n\n"
            "    def answer(self, request):\n"
            "        tensors = {tensor.name(): tensor for tensor in request.inputs()}\n"
        )
        lines = "".join(f"        {line}\n" for line in dedent(body).strip().split("\n"))
        (directory / "model.py").write_text(source + lines)

    def add_sub(self, directory):
        self.save(
            directory,
            """
            a, b = tensors["A"].as_numpy(), tensors["B"].as_numpy()
            return pb_utils.InferenceResponse(
                [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
            )
            """,
        )

    def identity(self, directory, datatype, *, rank):
        self.save(
            directory,
            """
            x = tensors["X"]
            y = pb_utils.Tensor.from_dlpack("Y", x) if x.triton_dtype() == 14 else pb_utils.Tensor("Y", x.as_numpy())
            return pb_utils.InferenceResponse([y])
            """,
        )

    def select(self, directory):
        self.save(
            directory,
            """
            try:
                y = np.take_along_axis(tensors["A"].as_numpy(), tensors["I"].as_numpy(), axis=1)
            except IndexError as error:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            return pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])
            """,
        )

    def network(self, directory):
        self.save(
            directory,
            f"""
            score = np.maximum(tensors["ROW"].as_numpy() @ np.array({WEIGHTS.tolist()}, np.float32), 0)
            return pb_utils.InferenceResponse([pb_utils.Tensor("SCORE", score)])
            """,
        )


class OpenVino(Kit):
    """OpenVINO, through models that its own operators make."""

    backend = "engine.worker.backends.openvino.backend:OpenVinoBackend"
    framework = "openvino"
    has_text = False
    narrowed = (DataType.INT64, DataType.UINT64, DataType.FP64)

    def save(self, directory, inputs, outputs):
        for name, node in {**inputs, **outputs}.items():
            node.output(0).get_tensor().set_names({name})
        results = [ops.result(node) for node in outputs.values()]
        openvino.save_model(openvino.Model(results, list(inputs.values())), directory / "model.xml", False)

    def parameter(self, kind, shape):
        return ops.parameter(openvino.PartialShape(list(shape)), getattr(openvino.Type, kind))

    def add_sub(self, directory):
        a, b = self.parameter("f32", [-1, 3]), self.parameter("f32", [-1, 3])
        self.save(directory, {"A": a, "B": b}, {"SUM": ops.add(a, b), "DIFFERENCE": ops.subtract(a, b)})

    def identity(self, directory, datatype, *, rank):
        x = self.parameter(OPENVINO_TYPES[datatype], [-1] * rank)
        shape = ops.shape_of(x)
        self.save(directory, {"X": x}, {"Y": ops.reshape(x, shape, special_zero=False)})

    def select(self, directory):
        # OpenVINO reads past the end where an index is too large. So the model counts the rows whose index is
        # not, and it is at a fault of its own, a concatenation, if these are not all.
        a, i = self.parameter("f32", [-1, 3]), self.parameter("i64", [-1, 1])
        zero, turned = ops.constant(np.array([0])), ops.constant(np.array([1, 0]))
        first = ops.constant(np.array(0))
        fits = ops.less(i, ops.constant(np.array(3)))
        chosen = ops.gather_elements(a, ops.select(fits, i, zero), 1)
        counted = ops.convert(ops.gather(ops.non_zero(fits), zero, first), "f32")
        both = ops.concat([ops.transpose(chosen, turned), counted], 0)
        self.save(directory, {"A": a, "I": i}, {"Y": ops.transpose(ops.gather(both, zero, first), turned)})

    def network(self, directory):
        row = self.parameter("f32", [-1, 4])
        self.save(
            directory, {"ROW": row}, {"SCORE": ops.relu(ops.matmul(row, ops.constant(WEIGHTS), False, False))}
        )
