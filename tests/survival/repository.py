"""Model repositories that tests build on the fly, and the backend that a third party would have installed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent

from onnx import TensorProto, helper

WIDTH = 16  # of every FP32 tensor
POISON = 666.0  # as a request's first element: the poisonable model segfaults on it

_ADD_SUB_PORTS = f"""
input [ {{ name: "A" data_type: TYPE_FP32 dims: [ {WIDTH} ] }}, {{ name: "B" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [
  {{ name: "SUM" data_type: TYPE_FP32 dims: [ {WIDTH} ] }},
  {{ name: "DIFFERENCE" data_type: TYPE_FP32 dims: [ {WIDTH} ] }}
]
"""

_IDENTITY_PORTS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

_PYTHON_ADD_SUB = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
            outputs = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""

_SLOW = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
            time.sleep(float(seconds.max()))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", seconds)]))
        return responses
"""

_GATED = """
import pathlib
import time

import triton_python_backend_utils as pb_utils

GATES = pathlib.Path(@GATES@)


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        ticket = pb_utils.get_input_tensor_by_name(request, "TICKET").as_numpy()
        number = int(ticket.ravel()[0])
        with open(GATES / "began", "a") as began:
            began.write(f"{number}\\n")
        while not ((GATES / f"open-{number}").exists() or (GATES / "open").exists()):
            if request.is_cancelled():
                (GATES / f"cancelled-{number}").touch()
                refusal = pb_utils.TritonError("not wanted any more", pb_utils.TritonError.CANCELLED)
                return pb_utils.InferenceResponse(error=refusal)
            time.sleep(0.005)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SERVED", ticket)])
"""

_RECORDING = """
import time

import triton_python_backend_utils as pb_utils


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]

    def execute(self, requests):
        tickets = [pb_utils.get_input_tensor_by_name(request, "TICKET") for request in requests]
        began = now()
        time.sleep(0.004)
        with open(@RECORD@, "a") as record:
            record.write(f"{self.name} {began} {now()}\\n")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SERVED", each.as_numpy())]) for each in tickets]
"""

_FAILING = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("the weights are not there")

    def execute(self, requests):
        return []
"""

_CRASHING = """
import os
import pathlib
import signal

import triton_python_backend_utils as pb_utils

CAUSE = pathlib.Path(@CAUSE@)


class TritonPythonModel:
    def initialize(self, args):
        if CAUSE.exists():
            os.kill(os.getpid(), signal.SIGSEGV)

    def execute(self, requests):
        tensor = pb_utils.get_input_tensor_by_name
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("SERVED", tensor(each, "TICKET").as_numpy())])
            for each in requests
        ]
"""

_POISONABLE = '''
"""A backend as a third party would write it: pure, and with a fault that one particular input meets."""

import os
import signal
import time

from actors.values.datatypes import DataType
from engine.worker.backends.base import Backend


class Poisonable(Backend):
    name = "poisonable"

    def load(self, model):
        self.pause = float(model.parameters.get("pause", "0"))

    def execute(self, batch):
        a, b = batch.stacked("A"), batch.stacked("B")
        time.sleep(self.pause)
        if (a[:, 0] == @POISON@).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        batch.respond([("SUM", DataType.FP32, a + b), ("DIFFERENCE", DataType.FP32, a - b)])
'''

_TORCH_CONFIG = f"""
backend: "pytorch"
max_batch_size: 8
input [ {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
output [ {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""


def instances(count: int) -> str:
    """Configuration text: so many workers on the CPU."""
    return f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n"


def parameter(key: str, value: object) -> str:
    """Configuration text: one parameter."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


class Repository:
    """A model repository under construction."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def onnx_add_sub(self, name: str = "onnx_add_sub", *, config: str = instances(2)) -> None:
        """SUM = A + B, DIFFERENCE = A - B in ONNX Runtime, batched."""
        ports = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in names]
            for names in (("A", "B"), ("SUM", "DIFFERENCE"))
        ]
        nodes = [
            helper.make_node("Add", ["A", "B"], ["SUM"]),
            helper.make_node("Sub", ["A", "B"], ["DIFFERENCE"]),
        ]
        graph = helper.make_graph(nodes, "add_sub", ports[0], ports[1])
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        ready = f'backend: "onnxruntime"\nmax_batch_size: 64\ndynamic_batching {{ }}\n{_ADD_SUB_PORTS}'
        self._add(name, ready + config, "model.onnx", model.SerializeToString())

    def onnx_identity(self, name: str = "onnx_identity", *, config: str = instances(1)) -> None:
        """Y = X in ONNX Runtime: FP32 of any length."""
        x, y = ([helper.make_tensor_value_info(port, TensorProto.FLOAT, ["n"])] for port in ("X", "Y"))
        graph = helper.make_graph([helper.make_node("Identity", ["X"], ["Y"])], "identity", x, y)
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        self._add(
            name,
            f'backend: "onnxruntime"\n{_IDENTITY_PORTS}{config}',
            "model.onnx",
            model.SerializeToString(),
        )

    def python_add_sub(self, name: str = "python_add_sub", *, config: str = instances(1)) -> None:
        """The same as a Python model, which is never run twice on one request."""
        ready = f'backend: "python"\nmax_batch_size: 8\ndynamic_batching {{ }}\n{_ADD_SUB_PORTS}'
        self._add(name, ready + config, "model.py", _PYTHON_ADD_SUB)

    def poisonable(self, name: str = "poisonable", *, config: str = instances(2)) -> None:
        """The same from the third-party backend of `install_poisonable`.

        It segfaults when A begins with POISON.
        """
        ready = f'backend: "poisonable"\nmax_batch_size: 32\ndynamic_batching {{ }}\n{_ADD_SUB_PORTS}'
        self._add(name, ready + config, "model.none", "")

    def slow(self, name: str = "slow", *, config: str = instances(1)) -> None:
        """SLEPT = SECONDS, after so many seconds."""
        self._add(name, _python_config("SECONDS", "SLEPT", "TYPE_FP32") + config, "model.py", _SLOW)

    def gated(self, gates: Path, name: str = "gated", *, config: str = instances(1)) -> None:
        """SERVED = TICKET, once `gates/open-<ticket>` or `gates/open` exists.

        `gates/began` lists the tickets in the order in which their executions begin.
        """
        code = _GATED.replace("@GATES@", repr(str(gates)))
        self._add(name, _python_config("TICKET", "SERVED", "TYPE_INT32") + config, "model.py", code)

    def recording(self, record: Path, name: str, *, config: str) -> None:
        """SERVED = TICKET; appends `<instance> <began> <ended>` to `record`.

        The times are nanoseconds of a clock that all processes share.
        """
        code = _RECORDING.replace("@RECORD@", repr(str(record)))
        self._add(name, _python_config("TICKET", "SERVED", "TYPE_INT32") + config, "model.py", code)

    def failing(self, name: str = "failing") -> None:
        """Never loads."""
        self._add(name, _python_config("TICKET", "SERVED", "TYPE_INT32") + instances(1), "model.py", _FAILING)

    def crashing(self, cause: Path, name: str = "crashing", *, config: str = instances(2)) -> None:
        """SERVED = TICKET; segfaults while it loads as long as the file `cause` exists."""
        code = _CRASHING.replace("@CAUSE@", repr(str(cause)))
        self._add(name, _python_config("TICKET", "SERVED", "TYPE_INT32") + config, "model.py", code)

    def torch_doubling(self, name: str = "torch_doubling") -> None:
        """OUTPUT__0 = 2 * INPUT__0 in PyTorch."""
        import torch

        class Doubling(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * 2

        self._add(name, _TORCH_CONFIG, "model.pt", b"")
        torch.jit.save(torch.jit.script(Doubling()), str(self.path / name / "1" / "model.pt"))

    def _add(self, name: str, config: str, artifact: str, content: str | bytes) -> None:
        version = self.path / name / "1"
        version.mkdir(parents=True)
        (self.path / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
        (version / artifact).write_bytes(content.encode() if isinstance(content, str) else content)


def _python_config(source: str, result: str, datatype: str) -> str:
    return dedent(f"""
        backend: "python"
        max_batch_size: 1
        input [ {{ name: "{source}" data_type: {datatype} dims: [ 1 ] }} ]
        output [ {{ name: "{result}" data_type: {datatype} dims: [ 1 ] }} ]
    """)


def install_poisonable(directory: Path) -> Path:
    """Lay out what `pip install` of a third party's backend would; return what belongs on PYTHONPATH."""
    information = directory / "survival_backend-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: survival-backend\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[tritium.backends]\npoisonable = survival_backend:Poisonable\n"
    )
    (directory / "survival_backend.py").write_text(_POISONABLE.replace("@POISON@", repr(POISON)))
    return directory


class Gates:
    """The files through which a test steers a gated model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def open(self, *tickets: int) -> None:
        """Let these tickets through; all of them where none is named."""
        for name in [f"open-{ticket}" for ticket in tickets] or ["open"]:
            (self.directory / name).touch()

    def began(self) -> list[int]:
        """The tickets whose execution has begun, in that order."""
        file = self.directory / "began"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def saw_cancelled(self, tickets: Iterable[int]) -> bool:
        """Whether the model saw, while it ran these tickets, that their requests were cancelled."""
        return all((self.directory / f"cancelled-{ticket}").exists() for ticket in tickets)
