"""Build the example models that are files of weights: `python examples/build_models.py`, from anywhere.

Needs onnx, torch and scikit-learn. The digits models share one small network. It is trained here in a second
or two on scikit-learn's bundled digits (1,797 images of 8 × 8 pixels, values 0 to 16) from a fixed seed. Its
weights are rounded to four decimals, so that another machine builds the same model. What is written by hand
(`config.pbtxt`, `model.py`) is left alone.
"""

import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HERE = Path(__file__).parent
MODELS = HERE / "models"
CLIENTS = HERE / "clients"


def train():
    """Return the network's weights (64 → 32 → 10) by name, and its accuracy on images it has not seen."""
    pixels, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        pixels / 16, labels, test_size=0.25, random_state=0, stratify=labels
    )
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.2, (64, 32)), np.zeros(32), rng.normal(0, 0.2, (32, 10)), np.zeros(10)]
    velocity = [np.zeros_like(w) for w in weights]
    targets = np.eye(10)[y]
    for _ in range(60):
        for rows in np.array_split(rng.permutation(len(x)), 42):
            hidden, scores = forward(weights, x[rows])
            delta = (scores - targets[rows]) / len(rows)
            back = (delta @ weights[2].T) * (hidden > 0)
            gradients = [x[rows].T @ back, back.sum(0), hidden.T @ delta, delta.sum(0)]
            for weight, speed, gradient in zip(weights, velocity, gradients, strict=True):
                speed *= 0.9
                speed -= 0.1 * (gradient + 1e-4 * weight)
                weight += speed
    weights = [np.round(weight, 4).astype(np.float32) for weight in weights]
    weights[0] /= 16  # the model takes pixels from 0 to 16
    accuracy = (forward(weights, x_test * 16)[1].argmax(1) == y_test).mean()
    return dict(zip(("w1", "b1", "w2", "b2"), weights, strict=True)), accuracy


def forward(weights, x):
    """Return the hidden layer and the probabilities."""
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    scores = np.exp(hidden @ weights[2] + weights[3])
    return hidden, scores / scores.sum(1, keepdims=True)


def save_onnx(name, nodes, inputs, outputs, initializers=()):
    """Write one ONNX model; IR 10 and opset 21, which every current runtime reads."""
    tensors = [
        [helper.make_tensor_value_info(port, TensorProto.FLOAT, ["batch", dim]) for port, dim in ports]
        for ports in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, name, *tensors, list(initializers))
    model = helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)], producer_name="tritium-examples"
    )
    onnx.checker.check_model(model)
    onnx.save(model, artifact(name, "model.onnx"))


def artifact(name, filename):
    """Return the path of a model's file in version 1."""
    path = MODELS / name / "1" / filename
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def build_arithmetic():
    """Write the two ONNX models without weights."""
    save_onnx(
        "add_sub_onnx",
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [("INPUT0", 16), ("INPUT1", 16)],
        [("OUTPUT0", 16), ("OUTPUT1", 16)],
    )
    save_onnx(
        "identity_fp32",
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        [("INPUT0", "elements")],
        [("OUTPUT0", "elements")],
    )


class Network(torch.nn.Module):
    """The digits network in torch."""

    def __init__(self, weights):
        super().__init__()
        self.weights = torch.nn.ParameterDict(
            {name: torch.from_numpy(array) for name, array in weights.items()}
        )

    def forward(self, image):
        weights = self.weights
        hidden = torch.relu(image @ weights["w1"] + weights["b1"])
        return torch.softmax(hidden @ weights["w2"] + weights["b2"], dim=1)


def build_digits(weights):
    """Write the digits network for ONNX Runtime, TorchScript, torch.export and plain numpy."""
    save_onnx(
        "digits_onnx",
        [
            helper.make_node("Gemm", ["IMAGE", "w1", "b1"], ["sum"]),
            helper.make_node("Relu", ["sum"], ["hidden"]),
            helper.make_node("Gemm", ["hidden", "w2", "b2"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["SCORES"], axis=1),
        ],
        [("IMAGE", 64)],
        [("SCORES", 10)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    network = Network(weights).eval().requires_grad_(False)
    image = torch.zeros(2, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit says so at every call
        path = artifact("digits_torchscript", "model.pt")
        torch.jit.trace(network, image).save(path)
    without_source_paths(path)
    exported = torch.export.export(network, (image,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    for node in exported.graph.nodes:
        # It names the files of the machine that built it.
        node.meta.pop("stack_trace", None)
    torch.export.save(exported, artifact("digits_pt2", "model.pt2"))
    np.savez(artifact("digits_pipeline", "weights.npz"), **weights)


def without_source_paths(path):
    """Write a TorchScript archive again without the records that tell where it was built."""
    with zipfile.ZipFile(path) as archive:
        records = {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith((".debug_pkl", "serialization_id"))
        }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records.items():
            archive.writestr(zipfile.ZipInfo(name), data)


def build_digit():
    """Write one image that the network has not been trained on, in the forms that the clients send."""
    pixels, labels = load_digits(return_X_y=True)
    _, x_test, _, y_test = train_test_split(pixels, labels, test_size=0.25, random_state=0, stratify=labels)
    digit = x_test[int(np.flatnonzero(y_test == 7)[0])]
    values = ", ".join(str(int(value)) for value in digit)
    CLIENTS.mkdir(exist_ok=True)
    (CLIENTS / "digit.json").write_text(
        '{\n  "inputs": [\n    { "name": "IMAGE", "datatype": "FP32", "shape": [1, 64],\n'
        f'      "data": [{values}] }}\n  ],\n'
        '  "outputs": [ { "name": "SCORES", "parameters": { "classification": 3 } } ]\n}\n'
    )
    grey = (digit * 255 / 16).astype(np.uint8).reshape(8, 8)
    (CLIENTS / "digit.pgm").write_bytes(b"P5 8 8 255\n" + grey.tobytes())
    (CLIENTS / "digit.png").write_bytes(png(grey))


def png(grey):
    """Return an 8-bit greyscale image as a PNG file."""
    height, width = grey.shape
    rows = b"".join(b"\0" + row.tobytes() for row in grey)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def main():
    build_arithmetic()
    weights, accuracy = train()
    print(f"digits: {accuracy:.1%} of the unseen images are recognised")
    build_digits(weights)
    build_digit()


if __name__ == "__main__":
    main()
