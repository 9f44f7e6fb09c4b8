"""What is measured, as data. A scenario is one request, sent to one model over and over.

Adding a scenario is adding a line here and, where the model is new, a writer in `benchmarks.repository`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row of the table at each of `concurrencies`.

    `inputs` is None if the model's own metadata decides (any shape it accepts will do). `expected` maps the
    inputs to the outputs that the verified answer must hold; None asks only for finite numbers.
    """

    name: str  # what `--only` takes
    title: str
    model: str
    encoding: Literal["binary", "json"]
    concurrencies: tuple[int, ...]
    inputs: Callable[[], Tensors] | None
    expected: Callable[[Tensors], Tensors] | None
    on_gpu: bool = False  # left out where there is none
    # At concurrency 1, compare with two copies and a loopback trip of so many bytes.
    transfer: int = 0


def pair() -> Tensors:
    """Return the two FP32[1,16] inputs of the add/sub models."""
    left = np.arange(16, dtype=np.float32).reshape(1, 16)
    return {"INPUT0": left, "INPUT1": np.full_like(left, 0.5)}


def sum_and_difference(inputs: Tensors) -> Tensors:
    """Return what the add/sub models compute."""
    left, right = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": left + right, "OUTPUT1": left - right}


def sum_and_difference_thrice(inputs: Tensors) -> Tensors:
    """Return what three add/sub models compute, each from the last one's sum and difference."""
    left, right = inputs["INPUT0"], inputs["INPUT1"]
    for _ in range(3):
        left, right = left + right, left - right
    return {"OUTPUT0": left, "OUTPUT1": right}


def ramp(nbytes: int) -> Callable[[], Tensors]:
    """Return what makes one FP32 input of `nbytes`, no two elements alike."""
    return lambda: {"INPUT0": np.arange(nbytes // 4, dtype=np.float32)}


def same(inputs: Tensors) -> Tensors:
    """Return what the identity models compute."""
    return {"OUTPUT0": inputs["INPUT0"]}


_add_sub = partial(Scenario, concurrencies=(1, 16, 64), inputs=pair, expected=sum_and_difference)

SCENARIOS: Final = (
    _add_sub(
        name="onnx-binary",
        title="ONNX add/sub, binary",
        model="onnx_add_sub",
        encoding="binary",
    ),
    _add_sub(
        name="onnx-json",
        title="ONNX add/sub, JSON",
        model="onnx_add_sub",
        encoding="json",
    ),
    _add_sub(
        name="python-binary",
        title="Python add/sub, binary",
        model="python_add_sub",
        encoding="binary",
    ),
    Scenario(
        name="digits",
        title="ONNX digits classifier, binary",
        model="digits_onnx",
        encoding="binary",
        concurrencies=(1, 16),
        inputs=None,
        expected=None,
    ),
    Scenario(
        name="identity-1mib",
        title="ONNX identity, 1 MiB each way",
        model="onnx_identity",
        encoding="binary",
        concurrencies=(1, 4),
        inputs=ramp(MIB),
        expected=same,
        transfer=MIB,
    ),
    Scenario(
        name="identity-16mib",
        title="ONNX identity, 16 MiB each way",
        model="onnx_identity",
        encoding="binary",
        concurrencies=(1,),
        inputs=ramp(16 * MIB),
        expected=same,
        transfer=16 * MIB,
    ),
    Scenario(
        name="gpu-identity-16mib",
        title="TorchScript identity on a GPU, 16 MiB each way",
        model="torch_identity_gpu",
        encoding="binary",
        concurrencies=(1,),
        inputs=ramp(16 * MIB),
        expected=same,
        on_gpu=True,
        transfer=16 * MIB,
    ),
    Scenario(
        name="gpu-digits",
        title="TorchScript digits classifier on a GPU, binary",
        model="digits_torchscript_gpu",
        encoding="binary",
        concurrencies=(1, 16),
        inputs=None,
        expected=None,
        on_gpu=True,
    ),
)

# What is measured besides the load: what `--only` takes, and what it is.
OPERATIONS: Final = {
    "startup": "start of the server with ten ONNX models, until ready",
    "memory": "resident memory of the idle server process",
    "recovery": "a worker is killed, until the next good answer",
    "hostile": "the loop's longest turn, memory, and a neighbour's latency under hostile inputs; only where it is named",
}

RECOVERY_SCENARIO: Final = next(each for each in SCENARIOS if each.name == "python-binary")
