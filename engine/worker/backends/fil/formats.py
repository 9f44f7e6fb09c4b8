"""Which library wrote a model's file, by its first bytes: a file's name says little.

XGBoost writes UBJSON whatever the suffix, unless that is `.json`. `recognise` is for a file that is said to
be a forest, and may be damaged. `recognise_among_all` is for a file of any kind, and is the server's.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = 256
"""Bytes of a file that `recognise` wants to see."""

XGBOOST_JSON = "XGBoost JSON"
XGBOOST_UBJ = "XGBoost UBJ"
XGBOOST_BINARY = "XGBoost's legacy binary format"
LIGHTGBM = "LightGBM text"
CHECKPOINT = "a treelite checkpoint"

FORMATS_OF: Mapping[str, tuple[str, ...]] = {
    "xgboost": (XGBOOST_JSON, XGBOOST_UBJ, XGBOOST_BINARY),
    "xgboost_json": (XGBOOST_JSON, XGBOOST_UBJ, XGBOOST_BINARY),
    "xgboost_ubj": (XGBOOST_JSON, XGBOOST_UBJ, XGBOOST_BINARY),
    "lightgbm": (LIGHTGBM,),
    "treelite_checkpoint": (CHECKPOINT,),
}
"""What the file of each `model_type` may hold."""

_FIRST_TYPE = {LIGHTGBM: "lightgbm", CHECKPOINT: "treelite_checkpoint", XGBOOST_JSON: "xgboost_json",
               XGBOOST_UBJ: "xgboost_ubj", XGBOOST_BINARY: "xgboost"}  # fmt: skip
_JSON = re.compile(rb"\s*\{\s*[\"}]")
_UBJ = re.compile(rb"\{[$#iUIlLC]")
_LIGHTGBM = re.compile(rb"\s*tree\r?\n")
_LEARNER_BYTES = 136  # XGBoost's `LearnerModelParamLegacy`, before the objective's name
_OBJECTIVE = re.compile(rb"(?:reg|binary|multi|rank|count|survival):[a-z_]{1,30}\Z")
_TREELITE_MAJOR = (3, 4, 5)
_TREELITE_TYPES = (1, 2, 3)  # uint32, float32, float64
_TREELITE_TASKS = 8
_BYTES_A_TREE = 40  # at least
TREELITE_HEAD = struct.Struct("<iiiBBQiB")
"""How a checkpoint begins: version, types of thresholds and leaves, trees, columns and task."""
_SURE_JSON = re.compile(rb'"learner"\s{0,8}:\s{0,8}\{')
_SURE_UBJ = re.compile(rb"\{(?:L\0{7}\x07|[iU]\x07|I\0\x07|l\0{3}\x07)learner\{")
_SURE_LIGHTGBM = re.compile(rb"tree\r?\nversion=v?\d")
_FOREIGN = (
    (re.compile(rb"\x80[\x02-\x05]"), "a Python pickle"),
    (re.compile(rb"\x78[\x01\x5e\x9c\xda]|\x1f\x8b|BZ"), "compressed data, as joblib writes pickles"),
    (re.compile(rb"PK\x03\x04"), "a ZIP archive, as skops and PyTorch write"),
    (
        re.compile(rb"\x08[\x03-\x0d]\x12|\x08[\x03-\x0d]:"),
        "an ONNX model, which backend 'onnxruntime' serves",
    ),
    (re.compile(rb"version https://git-lfs"), "a pointer of Git LFS, and not the file itself"),
)
_PICKLES = (
    "a Python pickle",
    "compressed data, as joblib writes pickles",
    "a ZIP archive, as skops and PyTorch write",
)


def recognise(head: bytes) -> str | None:
    """Return which format a file has that begins with `head`, or None."""
    if _JSON.match(head):
        return XGBOOST_JSON
    if _UBJ.match(head):
        return XGBOOST_UBJ
    if _LIGHTGBM.match(head):
        return LIGHTGBM
    if head.startswith(b"binf") or _is_legacy(head):
        return XGBOOST_BINARY
    if len(head) >= 14 and struct.unpack_from("<i", head)[0] in _TREELITE_MAJOR:
        return CHECKPOINT
    return None


def _is_legacy(head: bytes) -> bool:
    if len(head) < _LEARNER_BYTES + 8:
        return False
    (length,) = struct.unpack_from("<Q", head, _LEARNER_BYTES)
    name = head[_LEARNER_BYTES + 8 : _LEARNER_BYTES + 8 + length] if length < 64 else b""
    return _OBJECTIVE.match(name) is not None


def recognise_among_all(head: bytes, size: int) -> str | None:
    """Return which format a file of `size` bytes has that may be anything; None if it is hardly a forest.

    It says so only of what bears the mark of a library, for which it looks at all of `head`.
    """
    found = recognise(head)
    sure = {
        XGBOOST_JSON: lambda: _SURE_JSON.search(head) is not None,
        XGBOOST_UBJ: lambda: _SURE_UBJ.match(head) is not None,
        LIGHTGBM: lambda: _SURE_LIGHTGBM.match(head) is not None,
        CHECKPOINT: lambda: _is_whole_checkpoint(head, size),
    }
    return None if found in sure and not sure[found]() else found


def _is_whole_checkpoint(head: bytes, size: int) -> bool:
    if len(head) < TREELITE_HEAD.size:
        return False
    _, minor, patch, thresholds, leaves, trees, columns, task = TREELITE_HEAD.unpack_from(head)
    return (
        0 <= minor < 100
        and 0 <= patch < 100
        and thresholds in _TREELITE_TYPES
        and leaves in _TREELITE_TYPES
        and 0 < trees <= size // _BYTES_A_TREE
        and columns > 0
        and task < _TREELITE_TASKS
    )


def mistaken(head: bytes, model_type: str) -> str:
    """Return what is wrong with a file for `model_type` that begins with `head`; empty if it may be one."""
    found = recognise(head)
    if found in FORMATS_OF[model_type]:
        return ""
    if found is not None:
        return f"it is {found}, which is model_type '{_FIRST_TYPE[found]}', and not '{model_type}'"
    if not head:
        return "it is empty"
    foreign = next((what for pattern, what in _FOREIGN if pattern.match(head)), None)
    expected = " or ".join(FORMATS_OF[model_type])
    if foreign in _PICKLES:
        return (
            f"it is {foreign}. A server loads no pickles, because loading one runs the code in it:"
            " `tritium convert sklearn IN OUT` makes a treelite checkpoint of a scikit-learn forest"
        )
    return f"it is {foreign or f'not {expected}'}"
