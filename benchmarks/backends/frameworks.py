"""One model for each framework, and the framework by itself. Another joins by a class in `FRAMEWORKS`.

The models are the same in all: five layers of 512, X [n, 512] to Y [n, 512] in FP32, 1 to 2 ms for 128 rows
on a core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Infer = Callable[[Array], Array]

WIDTH: Final = 512
LAYERS: Final = 5


def weights() -> list[Array]:
    """Return the layers' matrices."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 20 for _ in range(LAYERS)]


class Framework(ABC):
    """One framework: how its model is written, and how it runs without a server."""

    backend: str
    """As a configuration names it."""

    @abstractmethod
    def write(self, version: Path) -> None:
        """Write the model into a version directory."""

    @abstractmethod
    def load(self, version: Path, threads: int) -> Infer:
        """Import the framework, load the model, and return what computes a batch on so many threads."""

    def configuration(self, threads: int) -> str:
        """Return the `config.pbtxt`, for one instance that has so many threads."""
        return (
            f'backend: "{self.backend}" max_batch_size: 1024 instance_group {{ count: 1 }}'
            ' input { name: "X" data_type: TYPE_FP32 dims: 512 }'
            ' output { name: "Y" data_type: TYPE_FP32 dims: 512 }'
            f' parameters {{ key: "tritium.threads" value {{ string_value: "{threads}" }} }}'
        )


class Onnx(Framework):
    """ONNX Runtime. It doesn't spin while it waits, as in a worker."""

    backend = "onnxruntime"

    def write(self, version: Path) -> None:
        """Write `model.onnx`."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        nodes, name = [], "X"
        matrices = [numpy_helper.from_array(each, f"W{at}") for at, each in enumerate(weights())]
        for at, matrix in enumerate(matrices):
            last = at == LAYERS - 1
            nodes.append(helper.make_node("MatMul", [name, matrix.name], [f"M{at}"]))
            nodes.append(helper.make_node("Relu", [f"M{at}"], ["Y" if last else f"R{at}"]))
            name = f"R{at}"
        ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["n", WIDTH]) for port in "XY"]
        graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], matrices)
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
        onnx.save(model, version / "model.onnx")

    def load(self, version: Path, threads: int) -> Infer:
        """Make a session."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        session = onnxruntime.InferenceSession(str(version / "model.onnx"), options)
        return lambda x: session.run(["Y"], {"X": x})[0]  # type: ignore[no-any-return]


class OpenVino(Framework):
    """OpenVINO, in FP32."""

    backend = "openvino"

    def write(self, version: Path) -> None:
        """Write `model.xml` and its weights."""
        import openvino
        from openvino import opset13 as ops

        x = node = ops.parameter(openvino.PartialShape([-1, WIDTH]), openvino.Type.f32)
        for each in weights():
            node = ops.relu(ops.matmul(node, ops.constant(each), False, False))
        for port, name in ((x, "X"), (node, "Y")):
            port.output(0).get_tensor().set_names({name})
        openvino.save_model(openvino.Model([ops.result(node)], [x], "layers"), version / "model.xml", False)

    def load(self, version: Path, threads: int) -> Infer:
        """Compile the model."""
        import openvino

        asked = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
        compiled = openvino.Core().compile_model(str(version / "model.xml"), "CPU", asked)
        request = compiled.create_infer_request()
        return lambda x: request.infer({"X": x}, share_inputs=True)["Y"]  # type: ignore[no-any-return]


class TensorFlow(Framework):
    """TensorFlow, through the signature of a SavedModel, as its own users call it."""

    backend = "tensorflow"

    def write(self, version: Path) -> None:
        """Write `model.savedmodel`."""
        import tensorflow as tf

        def layers(X: Any) -> dict[str, Any]:  # the input's name
            node = X
            for each in weights():
                node = tf.nn.relu(tf.matmul(node, each))
            return {"Y": node}

        held = tf.Module()
        held.run = tf.function(layers, input_signature=[tf.TensorSpec((None, WIDTH), tf.float32, name="X")])
        tf.saved_model.save(held, str(version / "model.savedmodel"), signatures={"serving_default": held.run})

    def load(self, version: Path, threads: int) -> Infer:
        """Load the SavedModel."""
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
        loaded = tf.saved_model.load(str(version / "model.savedmodel"))
        call = loaded.signatures["serving_default"]
        self._held = loaded  # a signature does not keep its variables
        return lambda x: call(X=tf.constant(x))["Y"].numpy()  # type: ignore[no-any-return]

    def configuration(self, threads: int) -> str:
        """Return the `config.pbtxt`."""
        return f'{super().configuration(threads)} platform: "tensorflow_savedmodel"'


FRAMEWORKS: Final = {each.backend: each for each in (Onnx(), OpenVino(), TensorFlow())}
