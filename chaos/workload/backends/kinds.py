"""One model of each backend: which there are, what of them is installed, and how each can be made to fail.

`add_sub` is the model of ONNX Runtime, and `echo` that of the python backend, both of the reference
repository.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.settings.extras import is_missing
from engine.worker.compilers import c_compiler


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The model of a backend.

    `package` is what must be installed for it. `poisons` are those of `chaos.workload.answers.DIVISORS` by
    which it comes to harm.
    """

    backend: str  # in its configuration
    more: str = ""  # lines of its configuration
    package: str = ""
    poisons: Sequence[str] = ()


BACKENDS: Final[Mapping[str, Backend]] = {
    # A program of `torch.export`. It has no loop that depends on its inputs.
    "exported": Backend(backend="pytorch", package="torch", poisons=("raise", "fpe")),
    "torchscript": Backend(backend="pytorch", package="torch", poisons=("raise", "fpe", "hang")),
    # OpenVINO divides by anything.
    "openvino": Backend(
        backend="openvino",
        more='default_model_filename: "model.onnx"\n',
        package="openvino",
        poisons=("hang",),
    ),
    # A forest has no input that harms it.
    "fil": Backend(backend="fil", package="treelite"),
    # TensorFlow looks at its divisors.
    "tensorflow": Backend(
        backend="tensorflow", more='platform: "tensorflow_savedmodel"\n', poisons=("raise", "hang")
    ),
    "library": Backend(backend="adder", poisons=("raise", "fpe", "hang")),
    "family": Backend(backend="family"),
}
"""By kind. `library` is a backend in C, and `family` one in Python; a poison of `family` is an action."""


def harmed_by(poison: str) -> tuple[str, ...]:
    """Return the kinds that a poison harms."""
    return tuple(kind for kind, each in BACKENDS.items() if poison in each.poisons)


def left_out(tensorflow: str) -> dict[str, str]:
    """Return the kinds that can't be served here, each with the reason, and TensorRT.

    `tensorflow` is the directory of an environment that has TensorFlow, if there is one.
    """
    missing = {
        kind: f"{each.package} is not installed"
        for kind, each in BACKENDS.items()
        if each.package and is_missing(each.package)
    }
    if not tensorflow:
        missing["tensorflow"] = "--tensorflow names no environment that has it"
    if not c_compiler(os.environ):
        missing["library"] = "there is no C compiler"
    return {**missing, "tensorrt": "needs a GPU"}
