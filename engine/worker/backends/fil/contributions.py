"""What each column added to a score (SHAP), by the library that trained the model.

treelite has no such thing, so a checkpoint has none either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.worker.backends.base import LoadError
from engine.worker.backends.fil import formats
from engine.worker.backends.fil.parameters import SHAP

if TYPE_CHECKING:
    from actors.values.tensors import Array
    from engine.worker.backends.fil.forest import Forest

_DEEPEST = 32  # tests; Triton's limit, beyond which the sums of small shares are no longer exact


class Contributions:
    """The contributions of a forest's columns, and last of a row its bias."""

    def __init__(self, forest: Forest, threads: int) -> None:
        """Load the model into its own library. Raises LoadError if there is none, or it is too deep."""
        if forest.depth() > _DEEPEST:
            raise LoadError(
                "Tree depths above 32 not supported. Shap cannot be considered accurate at this depth."
            )
        self._threads = threads
        # A row is a vector for each class, if there is more than one score.
        self.dims = [forest.columns + 1] if forest.classes == 1 else [forest.classes, forest.columns + 1]
        if forest.format in (formats.XGBOOST_JSON, formats.XGBOOST_UBJ):
            self._of = _xgboost(forest.path, threads)
        elif forest.format == formats.LIGHTGBM:
            self._of = _lightgbm(forest.path, threads)
        else:
            raise LoadError(
                f"'{SHAP}' is not supported for {forest.format}: it is computed by the library that trained"
                " the model, of files of XGBoost (JSON, UBJ) and LightGBM"
            )

    def of(self, x: Array) -> Array:
        """Return [rows, *dims] FP32 for `x`, FP32 [rows, columns]. Raises what the library raises."""
        found: Array = np.asarray(self._of(x), np.float32)
        return found.reshape(len(x), *self.dims)


def _xgboost(path: str, threads: int) -> Any:
    try:
        import xgboost
    except ImportError:
        raise LoadError(_missing("xgboost")) from None
    booster = xgboost.Booster({"nthread": threads})
    with open(path, "rb") as file:
        booster.load_model(bytearray(file.read()))  # by content: from a file it goes by the suffix

    kinds = booster.feature_types

    def of(x: Array) -> Any:
        rows = xgboost.DMatrix(x, feature_types=kinds, nthread=threads, enable_categorical=True)
        return booster.predict(rows, pred_contribs=True, validate_features=False)

    return of


def _lightgbm(path: str, threads: int) -> Any:
    try:
        import lightgbm
    except ImportError:
        raise LoadError(_missing("lightgbm")) from None
    booster = lightgbm.Booster(model_file=path)

    def of(x: Array) -> Any:
        return booster.predict(x, pred_contrib=True, num_threads=threads)

    return of


def _missing(package: str) -> str:
    return f"'{SHAP}' needs the package '{package}', which is not installed (extra 'fil-shap')"
