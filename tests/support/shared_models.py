"""Models of every kind, for tests of tensors in clients' shared memory."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

from tests.support.flavours import write_common_models, write_onnx_model

FLOATS = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
PYTHON = 'backend: "python"\nmax_batch_size: 0\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n' + FLOATS

COUNTED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    runs = 0

    def execute(self, requests):
        answers = []
        for request in requests:
            self.runs += 1
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + np.float32(self.runs))]))
        return answers
"""
SUMMED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    total = 0

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().ravel()[0]
            self.total = x.copy() if start else self.total + x
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.total)]))
        return answers
"""
CONTROLS = """
sequence_batching {
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]
}
"""
REPEATED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            for turn in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + np.float32(turn))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ASKED = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            asked = pb_utils.InferenceRequest(model_name="counted", requested_output_names=["Y"], inputs=[x])
            output = pb_utils.get_output_tensor_by_name(asked.exec(), "Y")
            answers.append(pb_utils.InferenceResponse([output]))
        return answers
"""
GATED = """
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.began, self.gate = (parameters[name]["string_value"] for name in ("began", "gate"))

    def execute(self, requests):
        with open(self.began, "w") as pipe:
            pipe.write("b")
        with open(self.gate) as pipe:
            pipe.read()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""
CHAIN = """
platform: "ensemble"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    { model_name: "plain" model_version: -1
      input_map { key: "X" value: "X" } output_map { key: "Y" value: "between" } },
    { model_name: "plain" model_version: -1
      input_map { key: "X" value: "between" } output_map { key: "Y" value: "Y" } }
  ]
}
"""
PLAIN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", request.inputs()[0].as_numpy() + np.float32(1))])
            for request in requests
        ]
"""


class Gate:
    """Lets the model `gated` answer: each execution says that it has begun, and waits to be let go on."""

    def __init__(self, folder: Path) -> None:
        self.began, self.gate = folder / "began", folder / "gate"
        os.mkfifo(self.began)
        os.mkfifo(self.gate)

    def wait_begun(self) -> None:
        """Return once an execution has begun."""
        assert self.began.read_text() == "b"

    def open(self) -> None:
        """Let it go on."""
        self.gate.write_text("go")


def write_kinds(folder: Path, gates: Path) -> Gate:
    """Write a model of each kind, and return what holds the model `gated` up."""
    gate = Gate(gates)
    write_common_models(folder)
    for name, kind in (("halves", "FLOAT16"), ("ints", "INT64")):
        import onnx

        datatype = getattr(onnx.TensorProto, kind)
        write_onnx_model(
            folder,
            name,
            nodes=[("Identity", ["X"], "Y")],
            inputs=[("X", datatype, [-1])],
            outputs=[("Y", datatype, [-1])],
        )
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{path}" }} }}\n'
        for key, path in (("began", gate.began), ("gate", gate.gate))
    )
    for name, code, config in (
        ("plain", PLAIN, PYTHON),
        ("counted", COUNTED, PYTHON),
        ("cached", COUNTED, PYTHON + "response_cache { enable: true }\n"),
        ("summed", SUMMED, PYTHON + CONTROLS),
        ("repeated", REPEATED, PYTHON + "model_transaction_policy { decoupled: true }\n"),
        ("asked", ASKED, PYTHON),
        ("gated", GATED, PYTHON + parameters),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(dedent(code))
        (folder / name / "config.pbtxt").write_text(config)
    (folder / "chain" / "1").mkdir(parents=True)
    (folder / "chain" / "config.pbtxt").write_text(CHAIN)
    return gate
