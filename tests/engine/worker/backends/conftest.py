"""Tiny models, made on the fly."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import engine.worker.backends.testing as local
from engine.worker.backends.base import TensorInfo
from engine.worker.backends.python.backend import PythonBackend


class Onnx:
    """Writes ONNX models of IR 10 and opset 21, which ONNX Runtime reads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, nodes, inputs, outputs, *, initializers=(), opset=21, filename="model.onnx"):
        """Write a graph whose ports are (name, element type, shape); return the version directory."""
        ports: Any = [
            [
                helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)
                for name, kind, shape in side
            ]
            for side in (inputs, outputs)
        ]
        graph = helper.make_graph(
            [helper.make_node(*node[:3], **(node[3] if node[3:] else {})) for node in nodes],
            "g",
            ports[0],
            ports[1],
            list(initializers),
        )
        model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])
        path = self.directory / filename
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)
        return self.directory


@pytest.fixture
def version_directory(tmp_path):
    """An empty `model/1` directory."""
    directory = tmp_path / "model" / "1"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def onnx_model(version_directory):
    """A writer of ONNX models into `model/1`."""
    return Onnx(version_directory)


@pytest.fixture
def python_model(version_directory):
    """Load a Python model from source: returns (backend, model info). Every one is unloaded afterwards."""
    loaded = []

    def load(source, *, inputs=(), outputs=(), filename="model.py", **options):
        (version_directory / filename).write_text(
            "import numpy as np\nimport triton_python_backend_utils as pb_utils\n" + dedent(source)
        )
        info = local.model_info(
            version_directory,
            artifact=filename,
            inputs=[TensorInfo(*tensor) for tensor in inputs],
            outputs=[TensorInfo(*tensor) for tensor in outputs],
            **options,
        )
        backend = PythonBackend()
        backend.load(info)
        loaded.append(backend)
        return backend, info

    yield load
    for backend in loaded:
        backend.unload()
