"""BERT by way of torch's own encoder layers: a second opinion on the ONNX graph that the examples write."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional

Weights = Mapping[str, np.ndarray]


class Encoder:
    """all-MiniLM-L6-v2, or anything with weights of the same names and with twelve heads."""

    def __init__(self, weights: Weights) -> None:
        self._weights = {name: torch.tensor(array) for name, array in weights.items()}
        count = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("encoder.layer."))
        self._layers = [self._layer(f"encoder.layer.{number}") for number in range(count)]

    def _layer(self, name: str) -> torch.nn.Module:
        weights = self._weights
        wide, hidden = weights[f"{name}.intermediate.dense.weight"].shape
        layer = torch.nn.TransformerEncoderLayer(
            hidden, 12, wide, dropout=0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        )
        parts = {
            "self_attn.out_proj": "attention.output.dense",
            "norm1": "attention.output.LayerNorm",
            "linear1": "intermediate.dense",
            "linear2": "output.dense",
            "norm2": "output.LayerNorm",
        }
        state = {
            f"{ours}.{kind}": weights[f"{name}.{theirs}.{kind}"]
            for ours, theirs in parts.items()
            for kind in ("weight", "bias")
        }
        for kind in ("weight", "bias"):
            three = [weights[f"{name}.attention.self.{each}.{kind}"] for each in ("query", "key", "value")]
            state[f"self_attn.in_proj_{kind}"] = torch.cat(three)
        layer.load_state_dict(state)
        return layer.eval()

    def embed(self, ids: np.ndarray) -> np.ndarray:
        """Return unit vectors [batch, hidden]: means over all of `ids` [batch, tokens], without padding."""
        weights = self._weights
        with torch.inference_mode():
            x = weights["embeddings.word_embeddings.weight"][torch.from_numpy(ids)]
            x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
            x = x + weights["embeddings.token_type_embeddings.weight"][0]
            x = functional.layer_norm(
                x,
                x.shape[-1:],
                weights["embeddings.LayerNorm.weight"],
                weights["embeddings.LayerNorm.bias"],
                1e-12,
            )
            for layer in self._layers:
                x = layer(x)
            embedded: np.ndarray = functional.normalize(x.mean(1)).numpy()
            return embedded


def random_weights(*, hidden: int, layers: int, vocabulary: int, positions: int) -> dict[str, np.ndarray]:
    """Return weights as a checkpoint of BERT names them, drawn from a fixed seed."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    weights = {
        "embeddings.word_embeddings.weight": drawn(vocabulary, hidden),
        "embeddings.position_embeddings.weight": drawn(positions, hidden),
        "embeddings.token_type_embeddings.weight": drawn(2, hidden),
        "embeddings.LayerNorm.weight": 1 + drawn(hidden),
        "embeddings.LayerNorm.bias": drawn(hidden),
    }
    for number in range(layers):
        for name, rows, columns in (
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", 2 * hidden, hidden),
            ("output.dense", hidden, 2 * hidden),
        ):
            weights[f"encoder.layer.{number}.{name}.weight"] = drawn(rows, columns)
            weights[f"encoder.layer.{number}.{name}.bias"] = drawn(rows)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            weights[f"encoder.layer.{number}.{name}.weight"] = 1 + drawn(hidden)
            weights[f"encoder.layer.{number}.{name}.bias"] = drawn(hidden)
    return weights
