"""Backends of Triton that are not installed here: what they are, and what serves their models instead.

These are hints for operators. The message of such a model is Triton's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

_SCRIPTED: Final = (
    "a model.py that imports it, in <--backend-directory>/{name} (docs/backends/python_based.md)"
)
_LIBRARY: Final = "put its libtriton_{name}.so into <--backend-directory>/{name}"

_KNOWN: Final[Mapping[str, str]] = {
    "dali": (
        f"DALI's backend is a C++ library: {_LIBRARY}; or serve 'model.dali' and 'dali.py' by package"
        f" 'nvidia-dali-cuda120', with {_SCRIPTED}"
    ),
    "paddle": (
        f"Paddle's backend is a C++ library: {_LIBRARY}; or serve the model by 'openvino'"
        " (docs/backends/openvino.md)"
    ),
    "hugectr": f"HugeCTR's backend is a C++ library: {_LIBRARY}",
    "armnn_tflite": f"Arm NN's backend is a C++ library: {_LIBRARY}",
    "stateful": (
        f"the stateful backend is a C++ library: {_LIBRARY}; or use implicit state (docs/sequences.md)"
    ),
    "nvtabular": "Merlin's backend is written in Python: put its folder into <--backend-directory>/{name}",
    "sglang": f"serve the folder by 'vllm' (docs/llm.md), or package 'sglang' with {_SCRIPTED}",
    "identity": f"it is one of Triton's own tests: {_LIBRARY}; examples/models/identity_fp32 does the same",
    "repeat": f"it is one of Triton's own tests: {_LIBRARY}; examples/models/repeat_int32 does the same",
    "square": f"it is one of Triton's own tests: {_LIBRARY}, or write it in Python (docs/decoupled.md)",
}

_FILES: Final[Mapping[str, str]] = {"model.dali": "dali", "dali.py": "dali", "model.json": "vllm"}
"""Files that the backend of a configuration without one is not told from, in Triton neither."""


def elsewhere(backend: str) -> str:
    """Return what an operator can do for a model of a backend that is not here; nothing if that is unknown."""
    return _KNOWN.get(backend, "").format(name=backend)


def backend_of_files(names: Collection[str]) -> str:
    """Return the backend that a version directory with such files is likely made for, or nothing."""
    return next((backend for name, backend in _FILES.items() if name in names), "")
