"""all-MiniLM-L6-v2 as an ONNX model: its weights are read from safetensors, its graph is written out here.

The graph is BERT's encoder, then what sentence-transformers puts behind it: the mean over the word pieces,
scaled to length 1. Needs numpy and onnx.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

EPSILON = 1e-12  # "layer_norm_eps" of the model's config.json


def read_safetensors(path):
    """Return a file's FP32 tensors by name: 8 bytes of length, a JSON header, then the tensors' bytes."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if entry.get("dtype") == "F32":
            begin, end = (start + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return tensors


class Graph:
    """An ONNX graph that is being written; each method adds a node and returns the name of its output."""

    def __init__(self):
        self.nodes = []
        self.constants = []

    def constant(self, value, dtype=np.float32):
        """Add a constant."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value, dtype), name))
        return name

    def integers(self, *values):
        """Add a constant [len(values)] of INT64."""
        return self.constant(values, np.int64)

    def add(self, operator, *inputs, output=None, **attributes):
        """Add a node of one output."""
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output


class Bert:
    """BERT's layers, with the weights of one model, written into a graph."""

    def __init__(self, graph, weights, heads):
        self.graph = graph
        self._weights = weights
        self._heads = heads

    def embeddings(self, ids):
        """Add up the vectors of each word piece and its position.

        [batch, tokens] → [batch, tokens, hidden].
        """
        add, integers = self.graph.add, self.graph.integers
        # All pieces are of the first of a pair's two sentences, so that the kind's vector can be added here.
        kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        table = self.graph.constant(self._weights["embeddings.position_embeddings.weight"] + kind)
        words = add("Gather", self._constant("embeddings.word_embeddings.weight"), ids)
        length = add("Shape", ids, start=1, end=2)
        positions = add("Slice", table, integers(0), length, integers(0))
        return self._norm("embeddings.LayerNorm", add("Add", words, positions))

    def layer(self, number, x, bias):
        """Add one layer: attention, then two dense maps, each added to its input and normalised."""
        add, name = self.graph.add, f"encoder.layer.{number}"
        attended = self._dense(
            f"{name}.attention.output.dense", self._attention(f"{name}.attention.self", x, bias)
        )
        x = self._norm(f"{name}.attention.output.LayerNorm", add("Add", attended, x))
        wide = add("Gelu", self._dense(f"{name}.intermediate.dense", x))
        return self._norm(
            f"{name}.output.LayerNorm", add("Add", self._dense(f"{name}.output.dense", wide), x)
        )

    def _attention(self, name, x, bias):
        add, integers = self.graph.add, self.graph.integers
        query, key, value = (
            add(
                "Transpose",
                add("Reshape", self._dense(f"{name}.{each}", x), integers(0, 0, self._heads, -1)),
                perm=perm,
            )
            for each, perm in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3]))
        )
        size = self._weights[f"{name}.query.bias"].size // self._heads
        scores = add("Div", add("MatMul", query, key), self.graph.constant(np.sqrt(size)))
        mixed = add("MatMul", add("Softmax", add("Add", scores, bias), axis=-1), value)
        return add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), integers(0, 0, -1))

    def _dense(self, name, x):
        product = self.graph.add("MatMul", x, self.graph.constant(self._weights[f"{name}.weight"].T))
        return self.graph.add("Add", product, self._constant(f"{name}.bias"))

    def _norm(self, name, x):
        scale, bias = self._constant(f"{name}.weight"), self._constant(f"{name}.bias")
        return self.graph.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)

    def _constant(self, name):
        return self.graph.constant(self._weights[name])


def onnx_model(weights, *, heads=12):
    """Return the model.

    INPUT_IDS and ATTENTION_MASK INT64 [batch, tokens] → EMBEDDING FP32 [batch, hidden] of length 1.
    """
    graph = Graph()
    bert = Bert(graph, weights, heads)
    add = graph.add
    mask = add("Cast", "ATTENTION_MASK", to=TensorProto.FLOAT)
    hidden = add("Sub", graph.constant(1), add("Unsqueeze", mask, graph.integers(1, 2)))
    bias = add("Mul", hidden, graph.constant(np.finfo(np.float32).min))
    x = bert.embeddings("INPUT_IDS")
    number = 0
    while f"encoder.layer.{number}.output.dense.weight" in weights:
        x = bert.layer(number, x, bias)
        number += 1
    # The mean over the pieces that are not padding differs from their sum by a factor, which the scaling
    # takes out again.
    total = add(
        "ReduceSum", add("Mul", x, add("Unsqueeze", mask, graph.integers(2))), graph.integers(1), keepdims=0
    )
    add("Div", total, add("ReduceL2", total, graph.integers(1)), output="EMBEDDING")
    return _model(graph, hidden=weights["embeddings.LayerNorm.bias"].size)


def _model(graph, hidden):
    """IR 10 and opset 21, which every current runtime reads."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
        for name in ("INPUT_IDS", "ATTENTION_MASK")
    ]
    outputs = [helper.make_tensor_value_info("EMBEDDING", TensorProto.FLOAT, ["batch", hidden])]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "minilm", inputs, outputs, graph.constants),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 21)],
        producer_name="tritium-examples",
    )
    onnx.checker.check_model(model)
    return model
