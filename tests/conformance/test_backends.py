"""What every backend must do, whatever its framework. A new backend joins by adding a `Kit` to `KITS`."""

import subprocess
import sys
import tomllib
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import numpy as np
import onnx
import openvino
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from openvino import opset13 as ops

from actors.values.datatypes import DataType
from actors.values.errors import ErrorCode
from engine.worker.backends.base import LoadError, TensorInfo
from engine.worker.backends.openvino.ports import DATATYPES as OPENVINO_DATATYPES
from engine.worker.backends.testing import LocalRequest, model_info, run

ROOT = Path(__file__).parents[2]
FP32 = DataType.FP32
NUMBERS = [datatype for datatype in DataType if datatype is not DataType.BYTES]
ONNX_TYPES = {
    DataType.FP16: "FLOAT16",
    DataType.FP32: "FLOAT",
    DataType.FP64: "DOUBLE",
    DataType.BF16: "BFLOAT16",
    DataType.BYTES: "STRING",
}
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


class Onnx(Kit):
    """ONNX Runtime."""

    backend = "engine.worker.backends.onnxruntime:OnnxRuntimeBackend"
    framework = "onnxruntime"

    def save(self, directory, nodes, inputs, outputs):
        taken, given = (
            [
                helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)
                for name, kind, shape in side
            ]
            for side in (inputs, outputs)
        )
        graph = helper.make_graph(
            [helper.make_node(*node, **more) for *node, more in nodes], "g", taken, given
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


class TorchScript(Kit):
    """PyTorch."""

    backend = "engine.worker.backends.pytorch:PyTorchBackend"
    framework = "torch"
    text_dims = ()

    def add_sub(self, directory):
        torch.jit.script(AddSub()).save(directory / "model.pt")

    def identity(self, directory, datatype, *, rank):
        torch.jit.script(Text() if datatype is DataType.BYTES else Identity()).save(directory / "model.pt")

    def select(self, directory):
        torch.jit.script(Select()).save(directory / "model.pt")


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


KITS = [Onnx(), OpenVino(), TorchScript(), Python()]


@pytest.fixture(params=KITS, ids=lambda kit: type(kit).__name__)
def kit(request):
    """One backend's kit."""
    return request.param


def backend_class(kit):
    module, _, name = kit.backend.partition(":")
    return getattr(import_module(module), name)


@pytest.fixture
def load(kit, tmp_path):
    """Load one of the kit's models; it is unloaded after the test."""
    loaded = []
    directory = tmp_path / "model" / "1"
    directory.mkdir(parents=True)

    def do(save, inputs, outputs, **options):
        save(directory)
        info = model_info(
            directory,
            inputs=[TensorInfo(*tensor) for tensor in inputs],
            outputs=[TensorInfo(*tensor) for tensor in outputs],
            **options,
        )
        backend = backend_class(kit)()
        backend.load(info)
        loaded.append(backend)
        return backend, info

    yield do
    for backend in loaded:
        backend.unload()


@pytest.fixture
def add_sub(kit, load):
    """The loaded add/sub model, of batches up to 64 rows."""
    inputs = [("A", FP32, [3]), ("B", FP32, [3])]
    return load(kit.add_sub, inputs, [("SUM", FP32, [3]), ("DIFFERENCE", FP32, [3])], max_batch_size=64_000)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=8), seed=st.integers(0, 1000))
def test_every_request_of_a_batch_gets_what_it_would_get_alone(add_sub, sizes, seed):
    backend, model = add_sub
    rng = np.random.default_rng(seed)
    data = [(rng.normal(size=(n, 3)).astype("f4"), rng.normal(size=(n, 3)).astype("f4")) for n in sizes]
    answers = run(backend, model, [LocalRequest({"A": a, "B": b}) for a, b in data])
    for (a, b), answer in zip(data, answers, strict=True):
        np.testing.assert_array_equal(answer.outputs["SUM"], a + b)
        np.testing.assert_array_equal(answer.outputs["DIFFERENCE"], a - b)
        assert set(answer.datatypes.values()) == {FP32}


def test_each_request_gets_only_the_outputs_it_asked_for(add_sub):
    backend, model = add_sub
    a = np.ones((1, 3), "f4")
    wishes = [["SUM"], ["DIFFERENCE"], []]
    answers = run(backend, model, [LocalRequest({"A": a, "B": a}, requested_outputs=wish) for wish in wishes])
    assert [sorted(answer.outputs) for answer in answers] == [["SUM"], ["DIFFERENCE"], ["DIFFERENCE", "SUM"]]


def test_a_large_batch_is_answered_whole(add_sub):
    backend, model = add_sub
    a = np.arange(3 * 64 * 1000, dtype="f4").reshape(-1, 3)
    [answer] = run(backend, model, [LocalRequest({"A": a, "B": a})])
    np.testing.assert_array_equal(answer.outputs["SUM"], a + a)
    assert not answer.outputs["DIFFERENCE"].any()


def test_inputs_are_left_as_they_came(add_sub):
    backend, model = add_sub
    a = np.ones((2, 3), "f4")
    run(backend, model, [LocalRequest({"A": a, "B": a})])
    assert (a == 1).all()


@pytest.mark.parametrize("datatype", NUMBERS, ids=str)
def test_every_bit_of_every_datatype_survives(kit, load, datatype):
    backend, model = load(
        lambda directory: kit.identity(directory, datatype, rank=3),
        [("X", datatype, [-1, -1])],
        [("Y", datatype, [-1, -1])],
        max_batch_size=8,
    )
    raw = np.random.default_rng(0).bytes(24 * datatype.size)
    x = np.frombuffer(raw, datatype.numpy).reshape(2, 3, 4)
    if datatype is DataType.BOOL:
        x = np.frombuffer(raw, np.uint8).reshape(2, 3, 4) > 100
    if datatype in kit.narrowed:
        halves = {DataType.INT64: "i4", DataType.UINT64: "i4", DataType.FP64: "f4"}[datatype]
        x = np.abs(np.frombuffer(raw[:96], halves).reshape(2, 3, 4)).astype(datatype.numpy)
    first, second = run(backend, model, [LocalRequest({"X": x[:1]}), LocalRequest({"X": x[1:]})])
    assert first.outputs["Y"].tobytes() + second.outputs["Y"].tobytes() == x.tobytes()
    assert first.outputs["Y"].shape == (1, 3, 4)


@pytest.mark.parametrize("elements", [["a", "zo\u00eb \U0001f600", ""], ["nul\0inside", "x", "y" * 10_000]])
def test_text_survives(kit, load, elements):
    if not kit.has_text:
        pytest.skip("requests of this backend carry no text")
    dims = list(kit.text_dims)
    backend, model = load(
        lambda directory: kit.identity(directory, DataType.BYTES, rank=1 + len(dims)),
        [("X", DataType.BYTES, dims)],
        [("Y", DataType.BYTES, dims)],
        max_batch_size=8,
    )
    x = np.array([element.encode() for element in elements], dtype=object).reshape(3, *[1] * len(dims))
    first, second = run(backend, model, [LocalRequest({"X": x[:1]}), LocalRequest({"X": x[1:]})])
    assert [*first.outputs["Y"].ravel(), *second.outputs["Y"].ravel()] == x.ravel().tolist()


def test_a_model_without_batching_sees_its_own_shape(kit, load):
    backend, model = load(
        lambda directory: kit.identity(directory, FP32, rank=2),
        [("X", FP32, [-1, 2])],
        [("Y", FP32, [-1, 2])],
    )
    x = np.arange(6, dtype="f4").reshape(3, 2)
    [answer] = run(backend, model, [LocalRequest({"X": x})])
    np.testing.assert_array_equal(answer.outputs["Y"], x)


def test_a_tensor_without_elements_is_a_tensor(kit, load):
    backend, model = load(
        lambda directory: kit.identity(directory, FP32, rank=2),
        [("X", FP32, [-1])],
        [("Y", FP32, [-1])],
        max_batch_size=8,
    )
    [answer] = run(backend, model, [LocalRequest({"X": np.zeros((2, 0), "f4")})])
    assert answer.outputs["Y"].shape == (2, 0)


def test_one_request_at_fault_fails_alone(kit, load):
    inputs = [("A", FP32, [3]), ("I", DataType.INT64, [1])]
    backend, model = load(kit.select, inputs, [("Y", FP32, [1])], max_batch_size=8)
    a = np.array([[5, 6, 7]], "f4")
    answers = run(backend, model, [LocalRequest({"A": a, "I": np.array([[i]])}) for i in (2, 99, 0)])
    assert [answer.code for answer in answers] == [None, ErrorCode.INTERNAL, None]
    assert answers[1].message
    assert [answers[i].outputs["Y"].tolist() for i in (0, 2)] == [[[7]], [[5]]]


def test_a_batch_after_a_failed_one_is_answered(kit, load):
    inputs = [("A", FP32, [3]), ("I", DataType.INT64, [1])]
    backend, model = load(kit.select, inputs, [("Y", FP32, [1])], max_batch_size=8)
    a = np.array([[5, 6, 7]], "f4")
    for index, code in ((99, ErrorCode.INTERNAL), (1, None)):
        [answer] = run(backend, model, [LocalRequest({"A": a, "I": np.array([[index]])})])
        assert answer.code is code


def test_a_model_that_is_not_there_is_a_load_error(kit, tmp_path):
    info = model_info(tmp_path, inputs=[], outputs=[], name="absent")
    with pytest.raises(LoadError, match=r"not found|unable to find"):
        backend_class(kit)().load(info)


def test_a_loaded_model_is_ready(add_sub):
    assert add_sub[0].ready()


def test_the_entry_point_names_the_backend(kit):
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "tritium.backends"
    ]
    assert entry_points[backend_class(kit).name] == kit.backend
    assert backend_class(kit).default_artifact


IN_A_WORKER = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from actors.values.datatypes import DataType
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.testing import LocalRequest, model_info, run
from {module} import {name} as Backend

assert {framework!r} not in sys.modules, "importing the backend imports {framework}"
ours = {{"engine", "actors", "protocols", "chaos"}}
for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
    del sys.modules[name]
sys.path.remove({root!r})

tensors = [TensorInfo(name, DataType.FP32, [3]) for name in ("A", "B", "SUM", "DIFFERENCE")]
model = model_info({directory!r}, inputs=tensors[:2], outputs=tensors[2:], max_batch_size=8)
backend = Backend()
backend.load(model)
ones = np.ones((1, 3), "f4")
[answer] = run(backend, model, [LocalRequest({{"A": ones, "B": ones}})])
assert answer.outputs["SUM"].tolist() == [[2, 2, 2]], answer
backend.unload()
left = [name for name in sys.modules if name.partition(".")[0] in ours]
assert not left, left
"""


def test_a_backend_needs_none_of_our_names_once_it_is_imported(kit, tmp_path):
    kit.add_sub(tmp_path)
    module, _, name = kit.backend.partition(":")
    script = IN_A_WORKER.format(
        root=str(ROOT), module=module, name=name, framework=kit.framework, directory=str(tmp_path)
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
