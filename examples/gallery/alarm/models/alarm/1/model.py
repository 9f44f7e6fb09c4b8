"""Say how unusual a reading is beside those that its sequence has brought before."""

from typing import NamedTuple

import numpy as np

import tritium
from tritium import FP32, FP64, Array


class Verdict(NamedTuple):
    sigmas: FP32[Array, 1]
    now_seen: FP64[Array, 3]


@tritium.model(max_batch_size=64)
def watch(reading: FP32[Array, 1], seen: FP64[Array, 3]) -> Verdict:
    """Welford's algorithm: `seen` is the count, the mean, and the sum of squares around the mean.

    Each row is of another sequence.
    """
    count, mean, squares = seen[:, :1], seen[:, 1:2], seen[:, 2:]
    away = reading - mean
    spread = np.sqrt(squares / np.maximum(count - 1, 1))
    sigmas = np.where((count >= 3) & (spread > 0), away / np.where(spread > 0, spread, 1), 0)
    mean = mean + away / (count + 1)
    squares = squares + away * (reading - mean)
    return Verdict(sigmas.astype(np.float32), np.concatenate([count + 1, mean, squares], axis=1))
