"""Scores to probabilities: `tritium run examples/softmax.py` serves it."""

import numpy as np

import tritium
from tritium import FP32, Array


@tritium.model(max_batch_size=64, output="probabilities")
def softmax(scores: FP32[Array, -1]) -> FP32[Array, -1]:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
