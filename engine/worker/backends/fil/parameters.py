"""The parameters of a forest, read as Triton's FIL backend reads them (contract, backends.md section 6)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.worker.backends.base import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INPUT = "input__0"
OUTPUT = "output__0"
SHAP = "treeshap_output"
LEAVES = "leaf_output"
COMPILE = "tritium.fil.compile"

FILES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
"""Each `model_type`, and the name of its file where the configuration gives none."""

_DEFAULT_TYPE = "xgboost"
_DEFAULT_THRESHOLD = 0.5
_LAYOUTS = ("depth_first", "breadth_first", "layered", "layered_children_together")
_ON_GPUS = ("layout", "chunk_size", "transfer_threshold")
_REMOVED = (
    "algo",
    "threads_per_tree",
    "storage_type",
    "blocks_per_sm",
    "output_class",
    "use_experimental_optimizations",
)
_REAL = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_WHOLE = re.compile(r"\s*([+-]?\d+)")


@dataclass(frozen=True)
class Options:
    """What the parameters of one model ask for.

    `threads` is None where the worker's share of the cores is meant. `notes` are for the operator: what was
    not understood, and what has no effect here.
    """

    model_type: str
    classifier: bool
    threshold: float
    probabilities: bool
    unknown_fields: bool
    threads: int | None
    compiling: str
    notes: Sequence[str] = ()


def default_file(parameters: Mapping[str, str]) -> str:
    """Return the name of the model's file where the configuration gives none; empty for an unknown type."""
    return FILES.get(parameters.get("model_type", _DEFAULT_TYPE), "")


def read(parameters: Mapping[str, str]) -> Options:
    """Return what `parameters` ask for. Raises LoadError, in Triton's words where it has some."""
    kind = parameters.get("model_type", _DEFAULT_TYPE)
    if kind not in FILES:
        raise LoadError(
            f"{kind} not recognized as a valid serialization format."
            f" (model_type is one of {', '.join(FILES)})"
        )
    layout = parameters.get("layout", _LAYOUTS[0])
    if layout not in _LAYOUTS:
        raise LoadError(f"Unknown nvForest layout name: {layout}")
    notes = [
        f"parameter '{key}' was removed from Triton's FIL backend and has no effect"
        for key in _REMOVED
        if key in parameters and not (key == "output_class" and parameters[key] in ("true", "false"))
    ]
    notes += [f"parameter '{key}' is about GPUs and has no effect" for key in _ON_GPUS if key in parameters]
    classifier, replaced = _classifier(parameters)
    threads, unread = _threads(parameters)
    return Options(
        model_type=kind,
        classifier=classifier,
        threshold=_threshold(parameters),
        probabilities=_switch(parameters, "predict_proba"),
        unknown_fields=_switch(parameters, "xgboost_allow_unknown_field"),
        threads=threads,
        compiling=parameters.get(COMPILE, "auto"),
        notes=(*notes, *replaced, *unread),
    )


def _classifier(parameters: Mapping[str, str]) -> tuple[bool, Sequence[str]]:
    old = parameters.get("output_class")
    if old in ("true", "false"):
        note = "parameter 'output_class' is the old name of 'is_classifier', and wins over it where both are"
        return old == "true", [note]
    if "is_classifier" not in parameters:
        raise LoadError("Required parameter is_classifier not found in config")
    return _switch(parameters, "is_classifier"), ()


def _switch(parameters: Mapping[str, str], key: str) -> bool:
    value = parameters.get(key, "false")
    if value not in ("true", "false"):
        raise LoadError(f"Expected 'true' or 'false' for parameter '{key}', got: '{value}'")
    return value == "true"


def _threshold(parameters: Mapping[str, str]) -> float:
    text = parameters.get("threshold")
    if text is None:
        return _DEFAULT_THRESHOLD  # as documented; Triton's code wants it written
    number = _REAL.match(text)
    if number is None:
        raise LoadError("Bad input for parameter threshold")
    return float(number[1])


def _threads(parameters: Mapping[str, str]) -> tuple[int | None, Sequence[str]]:
    text = parameters.get("cpu_nthread", "-1")
    number = _WHOLE.match(text)
    if number is None:
        return None, [
            f"parameter 'cpu_nthread' is no number: '{text}'; the worker's share of the cores is used"
        ]
    count = int(number[1])
    return (count if count > 0 else None), ()
