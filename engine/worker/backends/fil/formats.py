"""Which library wrote a model's file, by its first bytes: a file's name says little.

XGBoost writes UBJSON whatever the suffix, unless that is `.json`.
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
_OBJECTIVE = re.compile(rb"[a-z]+(:[a-z_]+)?\Z")
_TREELITE_MAJOR = (3, 4, 5)
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
