"""Model files as their libraries leave them, small; and the beginnings of other libraries' files."""

import io
import pickle
import struct
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.protobufs import message


@cache
def scores():
    """Return a module of torch: rows of 4 FP32 become rows of 3 scores."""
    import torch

    class Scores(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, features):
            return torch.softmax(self.layer(features), 1)

    return Scores().eval()


def zipmapped() -> bytes:
    """Return a classifier as skl2onnx makes it by default: a tensor LABEL, and P, a sequence of maps."""
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    nodes = [
        helper.make_node("ZipMap", ["X"], ["P"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
        helper.make_node("ArgMax", ["X"], ["LABEL"], axis=1, keepdims=0),
    ]
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, 2])
    label = helper.make_tensor_value_info("LABEL", TensorProto.INT64, [None])
    p = helper.make_value_info("P", helper.make_sequence_type_proto(maps))
    return helper.make_model(helper.make_graph(nodes, "graph", [x], [label, p])).SerializeToString()


def onnx_model(path: Path, *, external="") -> None:
    """Write Y = X · ones(4, 4), any number of rows; the weights into the file `external` if it is named."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in ("X", "Y")]
    weights = numpy_helper.from_array(np.ones((4, 4), np.float32), "weights")
    node = helper.make_node("MatMul", ["X", "weights"], ["Y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [weights])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    beside = {"save_as_external_data": True, "location": external, "size_threshold": 0} if external else {}
    onnx.save(model, str(path), **beside)


def script(path: Path, *, traced=False) -> None:
    """Write TorchScript."""
    import torch

    made = torch.jit.trace(scores(), (torch.zeros(2, 4),)) if traced else torch.jit.script(scores())
    made.save(str(path))


TRITON_MODEL = """
import triton_python_backend_utils as pb_utils
import doubling


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(8)
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", doubling.doubled(
            pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()))]) for request in requests]
"""
SILENT_MODEL = TRITON_MODEL.replace("auto_complete_config", "of_no_use")
DOUBLING = "def doubled(array):\n    return array * 2\n"
TRITIUM_MODEL = """
import tritium
from tritium import FP32, Array


@tritium.model(max_batch_size=8, output="negative")
def negated(positive: FP32[Array, 4]) -> FP32[Array, 4]:
    return -positive
"""


def archive(*names) -> bytes:
    """Return a ZIP archive of empty members."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name in names:
            file.writestr(name, b"")
    return content.getvalue()


def safetensors() -> bytes:
    """Return one tensor of safetensors."""
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    return struct.pack("<Q", len(header)) + header + bytes(4)


EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
EXPORTED = EXAMPLES / "digits_pt2" / "1" / "model.pt2"
"""A torch.export program: torch takes long to make one."""

_NODE = message((1, "x"), (2, "Placeholder"))
_DESCRIPTION = message((1, message((1, "image"))))

FOREIGN = {
    "GGUF": b"GGUF\x03\0\0\0" + bytes(64),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(64),
    "TensorRT plan": b"ptrt" + bytes(64),
    "NumPy arrays": b"\x93NUMPY\x01\0" + bytes(64),
    "CatBoost": b"CBM1" + bytes(64),
    "XGBoost binary": b"binf" + bytes(64),
    "TensorFlow Lite": b"\x1c\0\0\0TFL3" + bytes(64),
    "ONNX Runtime's own": b"\x1c\0\0\0ORTM" + bytes(64),
    "PyTorch Mobile": b"\x1c\0\0\0PTMF" + bytes(64),
    "ExecuTorch": b"\x1c\0\0\0ET12" + bytes(64),
    "TorchServe archive": archive("MAR-INF/MANIFEST.json", "model.pt"),
    "Keras": archive("metadata.json", "config.json", "model.weights.h5"),
    "skops": archive("schema.json", "1.npy"),
    "AOTInductor package": archive("model/data/aotinductor/model/a.so", "model/version"),
    "safetensors weights": safetensors(),
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "TensorFlow SavedModel": message((1, 1), (2, message((1, message((4, "serve"))), (2, _NODE)))),
    "TensorFlow GraphDef": message((1, _NODE), (1, _NODE), (4, message((1, 1645)))),
    "PaddlePaddle": message((1, b"\x08\x00\x10" + b"\xff" * 9 + b"\x01"), (4, b"\x08\x00")),
    "Core ML": message((1, 5), (2, _DESCRIPTION), (500, b"\n\x00")),
    "Caffe weights": message((1, "net"), (100, message((1, "conv")))),
    "DALI pipeline": message((1, 4), (2, 8), (3, message((1, "Copy")))),
    "PMML": b'<?xml version="1.0"?>\n<PMML version="4.4"/>',
    "OpenVINO IR": b'<?xml version="1.0"?>\n<net name="m" version="11"><layers/></net>',
    "TensorFlow.js": b'{"format":"graph-model","modelTopology":{},"weightsManifest":[]}',
    "PaddlePaddle 3 program": b'{"base_code":{"magic":"pir"},"program":{}}',
    "Python pickle": pickle.dumps({"a": 1}),
    "Python model": TRITON_MODEL.encode(),
}
"""How files of each format begin, by its name."""
