"""Inputs of requests as tritonclient takes them."""

from types import ModuleType
from typing import Any

import numpy as np
from tritonclient.utils import np_to_triton_dtype


def inputs(library: ModuleType, **arrays: np.ndarray[Any, Any]) -> list[Any]:
    """Return arrays by the names of their inputs, for tritonclient.http, .grpc or .grpc.aio."""
    made = []
    for name, array in arrays.items():
        made.append(library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made
