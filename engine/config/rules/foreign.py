"""Backends of Triton that are not installed here: what they are, and what serves their models instead.

These are hints for operators. The message of such a model is Triton's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

_SCRIPTED: Final = (
    "a model.py that imports it, in <--backend-directory>/{name} (docs/backends/python_based.md)"
)
_LIBRARY: Final = "put its libtriton_{name}.so into <--backend-directory>/{name}"

_TEST: Final = f"it is one of Triton's own tests: {_LIBRARY}"
_EXAMPLE: Final = f"it is an example of Triton's for writers of backends: {_LIBRARY}"

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
    "identity": f"{_TEST}; examples/models/identity_fp32 does the same",
    "repeat": f"{_TEST}; examples/models/repeat_int32 does the same",
    "square": f"{_TEST}, or write it in Python (docs/decoupled.md)",
    "sequence": f"{_TEST}, or write it in Python (docs/sequences.md)",
    "dyna_sequence": f"{_TEST}, or write it in Python (docs/sequences.md)",
    "implicit_state": f"{_TEST}, or write it in Python (docs/sequences.md)",
    **dict.fromkeys(("distributed_addsub", "iterative_sequence", "query"), _TEST),
    "minimal": f"{_EXAMPLE}; examples/c_backend is one of ours",
    "recommended": f"{_EXAMPLE}; examples/c_backend is one of ours",
    "bls": f"{_EXAMPLE}; calls of other models are written in Python (docs/python_backend.md)",
    "caffe2_netdef": "Triton has no Caffe2 any more: export the model to ONNX, and serve it by 'onnxruntime'",
    "custom": (
        "libraries of custom.h ended with Triton 2: build it for the C API of backends"
        " (docs/backends/c_libraries.md), and write the backend's own name"
    ),
    "ensemble": 'write platform: "ensemble" in its place',
}

_OWN: Final = (
    "if it is a backend of your own, put its libtriton_{name}.so or its model.py into"
    " <--backend-directory>/{name} (docs/backends/c_libraries.md, python_based.md)"
)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]+")
_TRITON_LIBRARY: Final = re.compile(r"libtriton_([A-Za-z0-9_-]+)\.so")
_LIBRARY_FILE: Final = re.compile(r"lib(?:triton_)?([A-Za-z0-9_-]+)\.so")

_FILES: Final[Mapping[str, str]] = {"model.dali": "dali", "dali.py": "dali", "model.json": "vllm"}
"""Files that the backend of a configuration without one is not told from, in Triton neither."""


def elsewhere(backend: str) -> str:
    """Return what an operator can do for a model of a backend that is not here; nothing if that is unknown."""
    return _KNOWN.get(backend, "").format(name=backend)


def misnamed(backend: str) -> str:
    """Return what to write where a name is a path or a library's file; nothing for other names."""
    name, told = backend.rpartition("/")[2], "a folder"
    library = _LIBRARY_FILE.fullmatch(name)
    if library is not None:
        name, told = library[1], "its file"
    if name == backend or not _PLAIN.fullmatch(name):
        return ""
    return (
        f'a backend is named without {told}: write backend: "{name}"; {elsewhere(name) or of_ones_own(name)}'
    )


def of_ones_own(backend: str) -> str:
    """Return where a backend of the operator's own goes; nothing if none can have such a name."""
    return _OWN.format(name=backend) if _PLAIN.fullmatch(backend) else ""


def backend_of_files(names: Collection[str]) -> str:
    """Return the backend that a version directory with such files is likely made for, or nothing."""
    likely = next((backend for name, backend in _FILES.items() if name in names), "")
    libraries = [found[1] for name in sorted(names) if (found := _TRITON_LIBRARY.fullmatch(name))]
    return likely or next(iter(libraries), "")
