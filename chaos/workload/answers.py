"""What the reference models are sent, what they answer with, and what the right answer is.

A model's *kind* is its name up to the first `-`: `echo-churned` is made and answers like `echo`.

    | kind           | inputs           | answer to the value `v`                              |
    |----------------|------------------|------------------------------------------------------|
    | `echo`, `slow` | VALUE            | v                                                    |
    | `batching`     | VALUE            | 3 v + 1                                              |
    | `counter`      | VALUE            | the sum of the sequence's values so far, v included  |
    | `add_sub`      | A = v, B = 7     | v + 7, v - 7, and what is left of v / 7, 0 to 6      |
    | `pipeline`     | VALUE = v, B = 7 | the same: `echo`, and its answer to `add_sub`        |
    | `stream`       | VALUE, PARTS     | v, v + 1, … : one a part                             |
    | `tale`         | a prompt         | the text of `Asked(PARTS, v)`, as code points        |
    | `family`       | VALUE            | v                                                    |
    | `fil`          | the bits of v    | v                                                    |

The models of other backends (`chaos.workload.backends`) are asked and answer as `add_sub`. All but `tale`,
which is a language model (`chaos.languages`), and `fil`, whose numbers are FP32, are INT32, of shape [1, 1],
or [1] for `stream`. Each Python model among these has an optional input POISON, a string of the same shape,
which is one of `chaos.workload.actions.ACTIONS`; of the pipeline it goes to `echo`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from chaos.languages.page import Asked
from chaos.record.records import Invoke

Tensor = npt.NDArray[Any]

TALE: Final = "tale"
ADDEND: Final = 7  # what `add_sub` is given beside the value
# The bound of all values, either way: sums of a sequence of 2,000 still fit.
LARGEST: Final = 1_000_000

BITS: Final = 20  # of a number as `fil` is given it

REFERENCE: Final = ("echo", "slow", "batching", "counter", "stream", "add_sub", "pipeline")
"""The kinds of which every run has a model."""

ADDERS: Final = ("add_sub", "exported", "torchscript", "openvino", "tensorflow", "library")
"""The kinds that are asked and answer as `add_sub` does."""

_SUMS: Final = ("SUM", "DIFFERENCE", "REMAINDER")

OUTPUTS: Final[Mapping[str, Sequence[str]]] = {
    "echo": ("ANSWER",),
    "slow": ("ANSWER",),
    "batching": ("ANSWER",),
    "counter": ("ANSWER",),
    "stream": ("ANSWER",),
    "pipeline": _SUMS,
    "family": ("ANSWER",),
    "fil": ("output__0",),
    **dict.fromkeys(ADDERS, _SUMS),
}
"""By kind, the outputs in the order in which `values` reads them."""

DIVISORS: Final[Mapping[str, int]] = {
    # ONNX Runtime refuses to divide by zero: the execution fails, and no worker dies.
    "raise": 0,
    # The model divides the smallest number by it. The quotient has no room: x86 traps, SIGFPE.
    "fpe": -1,
    "hang": -2,  # the model begins a loop without an end, in native code
}
"""B by which one of `ADDERS` comes to harm, because it has no other poison.

A is the value, so that no two of these requests look alike.
"""


def kind_of(model: str) -> str:
    """Return what a model is a copy of. Raises ValueError for one that is not of the reference repository."""
    kind = model.partition("-")[0]
    if kind not in OUTPUTS:
        raise ValueError(f"there is no model of the kind '{kind}', only {', '.join(OUTPUTS)}")
    return kind


def inputs(invoke: Invoke) -> dict[str, Tensor]:
    """Return what a request's inputs are, by name: arrays of int32, and of objects (`bytes`) for POISON.

    Sequence, priority and tenant are not inputs, and are left to the client. Raises ValueError for an unknown
    model or poison, and for a value that is too large.
    """
    if abs(invoke.value) > LARGEST:
        raise ValueError(f"a value of {invoke.value}: at most {LARGEST} either way")
    kind = kind_of(invoke.model)
    if kind in ADDERS:
        return {"A": _number(kind, invoke.value), "B": _number(kind, _divisor(kind, invoke.poison))}
    if kind == "fil":
        return {"input__0": _bits(invoke.value)}
    given = {"VALUE": _number(kind, invoke.value)}
    if kind == "pipeline":
        given["B"] = _number(kind, ADDEND)
    if kind == "stream":
        given["PARTS"] = _number(kind, invoke.parts)
    if invoke.poison:
        given["POISON"] = np.full(_shape(kind), invoke.poison.encode(), np.object_)
    return given


def expected(invoke: Invoke, earlier: Sequence[Invoke] = ()) -> Sequence[int]:
    """Return the values of the right answer, those of all its parts in order.

    `earlier` are the requests of the same sequence that the model has executed before, since its START; for
    other models it means nothing. A poisoned request has the same right answer, if it gets one.
    """
    value = invoke.value
    if invoke.model == TALE:
        return tuple(map(ord, Asked(invoke.parts, value).text()))
    kind = kind_of(invoke.model)
    if kind == "pipeline" or kind in ADDERS:
        return value + ADDEND, value - ADDEND, value % ADDEND
    match kind:
        case "batching":
            return (3 * value + 1,)
        case "counter":
            return (sum(each.value for each in earlier) + value,)
        case "stream":
            return tuple(range(value, value + invoke.parts))
        case _:
            return (value,)


def values(model: str, outputs: Mapping[str, Tensor]) -> Sequence[int]:
    """Return what one response, or one part of an answer, says.

    Outputs that are missing in the response are missing here too, and everything else in it is read: such an
    answer is not the right one.
    """
    named = (outputs[name] for name in OUTPUTS[kind_of(model)] if name in outputs)
    return tuple(int(each) for array in named for each in np.ravel(array))


def _bits(value: int) -> Tensor:
    """The lowest bit first."""
    return np.array([[value >> bit & 1 for bit in range(BITS)]], np.float32)


def _divisor(kind: str, poison: str) -> int:
    if not poison:
        return ADDEND
    if poison not in DIVISORS:
        raise ValueError(f"{kind} can't be made to '{poison}', only to {', '.join(DIVISORS)}")
    return DIVISORS[poison]


def _number(kind: str, value: int) -> Tensor:
    return np.full(_shape(kind), value, np.int32)


def _shape(kind: str) -> tuple[int, ...]:
    return (1,) if kind == "stream" else (1, 1)
