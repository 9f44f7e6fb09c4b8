"""What Triton says of an ONNX model that does not go with its configuration.

Contract: backends.md section 2.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.worker.backends.shape_texts import spelt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# By how ONNX Runtime begins such a type, and by what the fields of a file are called.
_KINDS: Mapping[str, str] = {
    "seq": "SEQUENCE",
    "sequence": "SEQUENCE",
    "map": "MAP",
    "opaque": "OPAQUE",
    "sparse_tensor": "SPARSETENSOR",
    "optional": "OPTIONAL",
}


def unsupported(tensor: str, kind: str) -> str:
    """Return that an input or output is no tensor; `kind` may be all of its type."""
    name = _KINDS.get(kind.partition("(")[0], "UNKNOWN")
    return f"Unsupported ONNX Type 'ONNX_TYPE_{name}' for I/O '{tensor}', expected 'ONNX_TYPE_TENSOR'."


def no_such_control(tensor: str) -> str:
    """Return that a scheduler's control has no input of the model's."""
    return f"configuration specified sequence control '{tensor}', but model does not provide that input"


def control_dims(model: str, tensor: str, dims: Sequence[int]) -> str:
    """Return that the input of a scheduler's control has other dims than one element for each row."""
    return (
        f"unable to load model '{model}', sequence control '{tensor}' in model has dims {spelt(dims)} but dims"
        " [1] is expected"
    )
