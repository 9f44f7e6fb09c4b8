"""Every backend's models as a server gets them, what clients ask them, and the right answers.

A backend joins by a class in `KITS`. One whose package is not installed is left out.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any

import ml_dtypes
import numpy as np
import torch

from actors.values.datatypes import DataType
from engine.settings.extras import is_missing
from tests.support import forests, kits
from tests.support.environments import TENSORFLOW
from tests.support.kits import WEIGHTS
from tests.support.native.compiling import library, shim

Array = np.ndarray[Any, Any]
FP32 = DataType.FP32
NOT_IN_JSON = (DataType.FP16, DataType.BF16)  # of what tritonclient sends


@dataclass(frozen=True)
class Ask:
    """One request, and its answer by output; None where it must fail."""

    given: Mapping[str, Array]
    expected: Mapping[str, Array] | None


@dataclass(frozen=True)
class Case:
    """One model, and what it is asked.

    Requests of one list of `asks` are sent at once, and run as one batch. Outputs need to be equal unless
    `close`.
    """

    name: str
    save: Callable[[Path], None]
    config: str
    asks: Sequence[Sequence[Ask]]
    datatypes: Mapping[str, DataType]
    close: bool = False

    @property
    def in_json(self) -> bool:
        """Whether its tensors can be JSON."""
        return not set(NOT_IN_JSON) & {*self.datatypes.values()}

    def count(self) -> int:
        """Return how many requests it is asked."""
        return sum(map(len, self.asks))


class ServedKit(ABC):
    """One backend of a server."""

    name: str
    package = "numpy"  # without which there is no such backend

    @property
    def is_here(self) -> bool:
        """Whether the backend is installed."""
        return not is_missing(self.package)

    def install(self, backends: Path) -> None:
        """Put what the backend needs into the server's backend directory."""
        del backends

    @abstractmethod
    def cases(self) -> Iterator[Case]:
        """Yield its models; those of `SAMPLE` among them."""


SAMPLE = ("network", "fault")
"""The cases of a quick run."""


def ports(inputs: Mapping[str, tuple[DataType, Any]], outputs: Mapping[str, tuple[DataType, Any]]) -> str:
    """Return the lines of a configuration for ports, each with its datatype and dims."""
    return "".join(
        f'{side} {{ name: "{name}" data_type: {datatype.config_name} dims: {dims} }}\n'
        for side, each in (("input", inputs), ("output", outputs))
        for name, (datatype, dims) in each.items()
    )


def one_batch(rows: int) -> str:
    """Return the lines of a configuration by which requests of so many rows together run as one batch."""
    return (
        f"max_batch_size: {rows}\ndynamic_batching {{ preferred_batch_size: {rows}"
        " max_queue_delay_microseconds: 20000000 }\n"
    )


class Anything(ServedKit):
    """A backend that runs models of any kind, which a kit of `tests.support.kits` writes."""

    head: str
    kit: kits.Kit
    text = True
    datatypes: Sequence[DataType] = [each for each in DataType if each is not DataType.BYTES]

    def cases(self) -> Iterator[Case]:
        yield self._network()
        yield self._fault()
        yield self._add_sub("add_sub", "max_batch_size: 64\n", [[1], [5], [64]])
        yield self._add_sub("batch", one_batch(6), [[1, 2, 3], [3, 1, 1, 1]])
        for datatype in self.datatypes:
            yield self._identity(datatype)
        if self.text:
            yield self._words()

    def _case(self, name, save, config, inputs, outputs, asks, *, close=False) -> Case:
        datatypes = {port: datatype for port, (datatype, _) in {**inputs, **outputs}.items()}
        return Case(name, save, self.head + config + ports(inputs, outputs), asks, datatypes, close)

    def _network(self) -> Case:
        rng = np.random.default_rng(1)
        asks = []
        for count in (1, 8):
            rows = rng.integers(-8, 9, (count, 4)).astype("f4") / 4
            asks.append([Ask({"ROW": rows}, {"SCORE": np.maximum(rows @ WEIGHTS, 0)})])
        row, score = {"ROW": (FP32, [4])}, {"SCORE": (FP32, [3])}
        return self._case("network", self.kit.network, "max_batch_size: 8\n", row, score, asks)

    def _fault(self) -> Case:
        a = np.array([[5, 6, 7]], "f4")
        asks = [
            Ask({"A": a, "I": np.array([[i]], "i8")}, {"Y": a[:, i : i + 1]} if i < 3 else None)
            for i in (2, 99, 0)
        ]
        inputs = {"A": (FP32, [3]), "I": (DataType.INT64, [1])}
        return self._case("fault", self.kit.select, one_batch(3), inputs, {"Y": (FP32, [1])}, [asks])

    def _add_sub(self, name, batching, sizes) -> Case:
        rng = np.random.default_rng(2)

        def ask(count: int) -> Ask:
            a, b = (rng.integers(-99, 99, (count, 3)).astype("f4") for _ in "ab")
            return Ask({"A": a, "B": b}, {"SUM": a + b, "DIFFERENCE": a - b})

        asks = [[ask(count) for count in together] for together in sizes]
        inputs, outputs = (
            {port: (FP32, [3]) for port in side} for side in (("A", "B"), ("SUM", "DIFFERENCE"))
        )
        return self._case(name, self.kit.add_sub, batching, inputs, outputs, asks)

    def _identity(self, datatype: DataType) -> Case:
        rng = np.random.default_rng(3)
        asks = []
        for shape in ((2, 3, 4), (1, 1, 5), (3, 7, 1)):
            # Whole numbers from 0 to 100: every datatype has them.
            numbers = rng.integers(0, 2 if datatype is DataType.BOOL else 100, shape)
            x = numbers.astype(ml_dtypes.bfloat16 if datatype is DataType.BF16 else datatype.numpy)
            asks.append([Ask({"X": x}, {"Y": x})])
        given, taken = ({port: (datatype, [-1, -1])} for port in "XY")

        def save(version: Path) -> None:
            self.kit.identity(version, datatype, rank=3)

        return self._case(f"identity_{datatype}", save, "max_batch_size: 8\n", given, taken, asks)

    def _words(self) -> Case:
        dims = self.kit.text_dims
        shape = (3, *(2 for _ in dims)) if dims else (3, 1)
        words = ["", "a", "zo\u00eb \U0001f600", "nul\0inside", "y" * 5000, "last"]
        x = np.array([word.encode() for word in words[: int(np.prod(shape))]], object).reshape(shape)
        ends = " reshape { }" if not dims else ""
        x_port, y_port = ({port: (DataType.BYTES, f"{list(dims) or 1}{ends}")} for port in "XY")

        def save(version: Path) -> None:
            self.kit.identity(version, DataType.BYTES, rank=1 + len(dims))

        asks = [[Ask({"X": x}, {"Y": x})], [Ask({"X": x[:1]}, {"Y": x[:1]})]]
        return self._case("words", save, "max_batch_size: 8\n", x_port, y_port, asks)


class OnnxRuntime(Anything):
    """ONNX Runtime."""

    name, package = "onnxruntime", "onnxruntime"
    head = 'backend: "onnxruntime"\n'
    kit = kits.Onnx()


class OpenVino(Anything):
    """OpenVINO."""

    name, package = "openvino", "openvino"
    head = 'backend: "openvino"\n'
    kit = kits.OpenVino()
    text = False


class TorchScript(Anything):
    """TorchScript programs."""

    name, package = "torchscript", "torch"
    head = 'backend: "pytorch"\n'
    kit = kits.TorchScript()


class _Exporting(kits.TorchScript):
    """Programs of `torch.export`."""

    def _save(self, directory: Path, module: torch.nn.Module, *examples: torch.Tensor, free: int = 1) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about itself
            sizes = [torch.export.Dim(f"size{at}", min=1) for at in range(free)]
            shapes = tuple(dict(enumerate(sizes)) for _ in examples)
            program = torch.export.export(module.eval(), examples, dynamic_shapes=shapes)
            torch.export.save(program, directory / "model.pt2")

    def add_sub(self, directory):
        self._save(directory, kits.AddSub(), torch.ones(2, 3), torch.ones(2, 3))

    def identity(self, directory, datatype, *, rank):
        kind = torch.from_numpy(np.ones(1, np.uint8)).to(_TORCH_TYPES[datatype]).dtype
        self._save(directory, kits.Identity(), torch.ones(2, 3, 4, dtype=torch.uint8).to(kind), free=rank)

    def select(self, directory):
        self._save(directory, kits.Select(), torch.ones(2, 3), torch.zeros(2, 1, dtype=torch.int64))

    def network(self, directory):
        self._save(directory, kits.Network(), torch.ones(2, 4))


_TORCH_TYPES = {
    each: getattr(torch, {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64",
                          "BF16": "bfloat16"}.get(each.name, each.name.lower()))
    for each in DataType
    if each is not DataType.BYTES
}  # fmt: skip


class Exported(Anything):
    """Programs of `torch.export`."""

    name, package = "exported", "torch"
    head = 'backend: "pytorch"\n'
    kit = _Exporting()
    text = False


class _Modules(kits.TorchScript):
    """Modules in Python, with their weights beside them."""

    def _save(self, directory: Path, body: str) -> None:
        source = "import torch\n\n\nclass Model(torch.nn.Module):\n"
        lines = "".join(f"    {line}\n" for line in dedent(body).strip().split("\n"))
        (directory / "model.py").write_text(source + lines)

    def add_sub(self, directory):
        self._save(directory, "def forward(self, a, b):\n    return a + b, a - b")

    def identity(self, directory, datatype, *, rank):
        self._save(directory, "def forward(self, x):\n    return x")

    def select(self, directory):
        self._save(directory, "def forward(self, a, i):\n    return torch.gather(a, 1, i)")

    def network(self, directory):
        self._save(
            directory,
            """
            def __init__(self):
                super().__init__()
                self.weights = torch.nn.Parameter(torch.zeros(4, 3))

            def forward(self, row):
                return torch.relu(row @ self.weights)
            """,
        )
        torch.save({"weights": torch.from_numpy(WEIGHTS.copy())}, directory / "model.pt")


class Modules(Anything):
    """PyTorch's runtime in Python."""

    name, package = "modules", "torch"
    head = (
        'backend: "pytorch"\nruntime: "model.py"\n'
        'parameters { key: "TORCH_COMPILE_OPTIONAL_PARAMETERS" value { string_value: "{\\"disable\\": true}" } }\n'
    )
    kit = _Modules()
    text = False


class _SavedModels(kits.Kit):
    """Copies of what another interpreter, that has TensorFlow, has written once for all tests."""

    backend, framework = "engine.worker.backends.tensorflow.backend:TensorFlowBackend", "tensorflow"

    def _copy(self, name: str, directory: Path) -> None:
        shutil.copytree(_written_by_tensorflow() / name, directory, dirs_exist_ok=True)

    def add_sub(self, directory):
        self._copy("add_sub", directory)

    def identity(self, directory, datatype, *, rank):
        names = {DataType.BYTES: "string", DataType.FP16: "half", DataType.FP32: "float32",
                 DataType.FP64: "float64"}  # fmt: skip
        self._copy(f"identity_{names.get(datatype, datatype.name.lower())}_{rank}", directory)

    def select(self, directory):
        self._copy("select", directory)

    def network(self, directory):
        self._copy("network", directory)


@cache
def _written_by_tensorflow() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tritium-tensorflow-"))
    writer = Path(__file__).with_name("tensorflow_kit.py")
    command = [f"{TENSORFLOW.named}/bin/python", str(writer), str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


class TensorFlow(Anything):
    """SavedModels, where a variable names an environment that has TensorFlow."""

    name, package = "tensorflow", f"environment in {TENSORFLOW.variable}"
    head = (
        'platform: "tensorflow_savedmodel"\n'
        f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{TENSORFLOW.named}" }} }}\n'
    )
    kit = _SavedModels()
    # The backend has no BF16, as in Triton.
    datatypes: Sequence[DataType] = [each for each in Anything.datatypes if each is not DataType.BF16]

    @property
    def is_here(self) -> bool:
        return bool(TENSORFLOW.named)


class Python(Anything):
    """Python models."""

    name = "python"
    head = 'backend: "python"\n'
    kit = kits.Python()


class _Family(kits.Python):
    """Models whose code lies with their backend; a file says what each does."""

    def save(self, directory, body):
        (directory / "body.py").write_text(dedent(body).strip())


class PythonBased(Anything):
    """A backend in Python, for a family of models."""

    name = "python_based"
    head = 'backend: "family"\n'
    kit = _Family()

    def install(self, backends: Path) -> None:
        folder = backends / "family"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(_FAMILY)


_FAMILY = '''
"""What a model of the family does, its file `body.py` says."""
import os
import textwrap
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(args["model_repository"], args["model_version"], "body.py")) as file:
            body = textwrap.indent(file.read(), "    ")
        scope = {"np": np, "pb_utils": pb_utils}
        exec("def answer(tensors):\\n" + body, scope)
        self.answer = scope["answer"]

    def execute(self, requests):
        return [self.answer({each.name(): each for each in request.inputs()}) for request in requests]
'''


class _Nothing(kits.TorchScript):
    """Models that are nothing but their configuration."""

    text_dims: tuple[int, ...] = (-1,)

    def add_sub(self, directory):
        """Write nothing: the library knows it by its inputs. So it is with the others."""

    select = network = add_sub

    def identity(self, directory, datatype, *, rank):
        """Write nothing."""


class Library(Anything):
    """A backend that is a library in C."""

    name = "library"
    head = 'backend: "computing"\n'
    kit = _Nothing()

    def install(self, backends: Path) -> None:
        shim()
        (backends / "computing").mkdir(parents=True)
        source = Path(__file__).parent / "native" / "computing.c"
        shutil.copy(library(source, "computing"), backends / "computing")


class Forests(ServedKit):
    """Forests, which are the only models of their backend."""

    name, package = "fil", "treelite"

    def cases(self) -> Iterator[Case]:
        yield self._scores("network", "xgb_softprob", [1, 8])
        yield self._fault()
        yield self._scores("add_sub", "lgb_categories_multiclass", [1, 5, 64])
        yield self._scores("batch", "skl_forest_of_three", [[1, 2, 3], [3, 1, 1, 1]])
        yield self._scores("json_file", "xgb_binary_json", [1, 9])

    def _scores(self, name: str, forest: str, sizes: Sequence[Any]) -> Case:
        made = forests.trained(forest)
        asks = []
        for seed, each in enumerate(sizes):
            together = each if isinstance(each, list) else [each]
            rows = [forests.rows(count, seed=10 + seed) for count in together]
            asks.append([Ask({"input__0": x}, {"output__0": _shaped(made, x)}) for x in rows])
        config = forests.config_of(made)
        if name == "batch":
            config = config.replace("max_batch_size: 1024", "").replace("dynamic_batching { }", one_batch(6))
        return self._case(name, made, config, asks)

    def _case(self, name: str, made: forests.Made, config: str, asks: Sequence[Sequence[Ask]]) -> Case:
        def save(version: Path) -> None:
            made.save(version / made.file_name)

        datatypes = dict.fromkeys(("input__0", "output__0", "treeshap_output"), FP32)
        return Case(name, save, config, asks, datatypes, close=True)

    def _fault(self) -> Case:
        """XGBoost's contributions, which it does not give for infinities."""
        made = forests.trained("xgb_binary")
        assert made.contributions
        asks = []
        for seed, value in ((21, 0), (22, np.inf), (23, 0)):
            x = forests.rows(1, seed=seed)
            x[0, 0] += value
            shares = {"treeshap_output": made.contributions(x)} if not value else None
            asks.append(Ask({"input__0": x}, shares))
        config = forests.config_of(made, shap=True)
        config = config.replace("max_batch_size: 1024", "").replace("dynamic_batching { }", one_batch(3))
        return self._case("fault", made, config, [asks])


def _shaped(made: forests.Made, x: Array) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries', about settings and each other
        expected = np.asarray(made.expected(x), np.float32)
    return expected.reshape((len(x),) if made.classes == 1 else (len(x), made.classes))


KITS: Sequence[ServedKit] = [
    OnnxRuntime(),
    OpenVino(),
    TorchScript(),
    Exported(),
    Modules(),
    Python(),
    PythonBased(),
    Library(),
    Forests(),
    TensorFlow(),
]
