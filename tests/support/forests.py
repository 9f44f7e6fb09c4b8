"""Forests of the libraries that users train them with, and what those libraries predict.

A `Made` forest is a file, the parameters of its configuration, and a function that gives the source library's
own answer to rows of `COLUMNS` FP32 numbers. Column 2 holds whole numbers, which are categories in some.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import sklearn.ensemble
import xgboost

ROOT = Path(__file__).parents[2]
COLUMNS = 6
CATEGORY = 2
_ROWS = 240
_FILES = {
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Made:
    """A trained forest. `gaps`: it takes missing values. `strange`: and categories that it has not seen."""

    expected: Callable[[Array], Array]  # [rows] or [rows, classes]
    save: Callable[[Path], None]
    model_type: str
    classes: int = 1  # scores of a row
    classifier: bool = False
    gaps: bool = True
    strange: bool = True
    contributions: Callable[[Array], Array] | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """The name that Triton looks for."""
        return _FILES[self.model_type]


def rows(count: int = _ROWS, *, seed: int = 0, gaps: bool = False) -> Array:
    """Return rows of numbers, and of whole ones in the column of categories."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, COLUMNS)).astype("f4")
    x[:, CATEGORY] = rng.integers(0, 12, count)
    if gaps:
        x[rng.random(x.shape) < 0.15] = np.nan
    return x


def extreme(made: Made) -> Array:
    """Return rows at the edges of what a column can hold."""
    x = rows(16, seed=5)
    x[0, 0], x[1, 0], x[2, 1], x[3, 1] = 3e38, -3e38, 0.0, -0.0
    x[4, 3], x[5, 3] = np.float32(1e-45), -np.float32(1e-45)
    if made.strange:
        x[6:10, CATEGORY] = [12, 63, 64, 1e6]
    return x


INPUTS: Mapping[str, Callable[[Made], Array]] = {
    "plain": lambda made: rows(64, seed=1),
    "one": lambda made: rows(1, seed=2),
    "gaps": lambda made: rows(64, seed=3, gaps=made.gaps),
    "extreme": extreme,
}


def config_of(made: Made, *, compiling: str = "off", shap: bool = False, extra: str = "") -> str:
    """Return a config.pbtxt whose output is the scores of a forest."""
    parameters = {
        "model_type": made.model_type,
        "is_classifier": str(made.classifier).lower(),
        "predict_proba": str(made.classifier).lower(),
        "tritium.fil.compile": compiling,
        **made.parameters,
    }
    lines = [
        'backend: "fil"',
        "max_batch_size: 1024",
        f'input {{ name: "input__0" data_type: TYPE_FP32 dims: [ {COLUMNS} ] }}',
        f'output {{ name: "output__0" data_type: TYPE_FP32 dims: [ {made.classes} ] }}',
        "dynamic_batching { }",
        *(f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
          for key, value in parameters.items()),
        extra,
    ]  # fmt: skip
    if shap:
        dims = f"{made.classes}, {COLUMNS + 1}" if made.classes > 1 else COLUMNS + 1
        lines.append(f'output {{ name: "treeshap_output" data_type: TYPE_FP32 dims: [ {dims} ] }}')
    return "\n".join(lines)


def write(repository: Path, name: str, made: Made, **options: Any) -> Path:
    """Write a model into a repository; return its version directory."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config_of(made, **options))
    made.save(version / made.file_name)
    return version


def _targets() -> tuple[Array, Array, Array, Array]:
    """Return numbers, two classes, three classes and positive numbers to learn."""
    x = rows()
    number = x[:, 0] * x[:, 1] + (x[:, CATEGORY] % 3)
    return number, (number > 1).astype(int), np.digitize(number, [0.5, 1.5]), np.abs(number) + 0.1


# XGBoost

_XGB_KINDS = ["c" if column == CATEGORY else "q" for column in range(COLUMNS)]


def xgb(
    objective: str,
    target: int = 0,
    *,
    kind: str = "xgboost_ubj",
    categories: bool = False,
    gaps: bool = True,
    **options: Any,
) -> Made:
    """Train with XGBoost."""
    y = _targets()[target]
    kinds = _XGB_KINDS if categories else None

    def matrix(x: Array) -> xgboost.DMatrix:
        return xgboost.DMatrix(x, feature_types=kinds, enable_categorical=categories, nthread=1)

    data = matrix(rows(gaps=gaps))
    if objective == "survival:aft":
        data.set_float_info("label_lower_bound", y)
        data.set_float_info("label_upper_bound", y + 1)
    else:
        data.set_label(y)
    if objective.startswith("rank:"):
        data.set_group([24] * 10)
    rounds = options.pop("rounds", 7)
    settings = {"objective": objective, "max_depth": 5, "nthread": 1, "verbosity": 0, **options}
    booster = xgboost.train(settings, data, rounds)
    classes = int(options.get("num_class", 1))

    def scores(x: Array) -> Array:
        # `softmax` itself predicts the class; Triton's backend gives the classes' scores
        if objective != "multi:softmax":
            return booster.predict(matrix(x))
        margins = booster.predict(matrix(x), output_margin=True)
        shares = np.exp(margins - margins.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def save(path: Path) -> None:
        suffix = "json" if kind == "xgboost_json" else "ubj"
        path.write_bytes(booster.save_raw(suffix))

    return Made(
        scores,
        save,
        kind,
        classes,
        classifier=target in (1, 2) and not objective.startswith(("rank", "reg", "count")),
        strange=not categories,
        contributions=lambda x: booster.predict(matrix(x), pred_contribs=True),
    )


# LightGBM


def lgb(
    objective: str, target: int = 0, *, categories: bool = False, gaps: bool = True, **options: Any
) -> Made:
    """Train with LightGBM."""
    y = _targets()[target]
    data = lightgbm.Dataset(
        rows(gaps=gaps),
        y,
        group=[24] * 10 if "rank" in objective else None,
        categorical_feature=[CATEGORY] if categories else [],
    )
    settings = {
        "objective": objective,
        "verbose": -1,
        "num_leaves": 15,
        "min_data_in_leaf": 5,
        "num_threads": 1,
    }
    booster = lightgbm.train({**settings, "min_data_per_group": 5, **options}, data, 7)
    classes = int(options.get("num_class", 1))

    def save(path: Path) -> None:
        path.write_text(booster.model_to_string())

    return Made(
        lambda x: np.asarray(booster.predict(x, num_threads=1)),
        save,
        "lightgbm",
        classes,
        classifier=target in (1, 2) and "rank" not in objective,
        contributions=lambda x: np.asarray(booster.predict(x, pred_contrib=True, num_threads=1)),
    )


# scikit-learn


def skl(estimator: str, target: int = 0, *, gaps: bool = False, **options: Any) -> Made:
    """Train with scikit-learn. The file is made by `tritium convert sklearn`, from a pickle."""
    x, y = rows(gaps=gaps), _targets()[target]
    made = getattr(sklearn.ensemble, estimator)(random_state=0, **options).fit(x, y)
    classifier = estimator.endswith("Classifier")
    boosted = "Boosting" in estimator

    def expected(x: Array) -> Array:
        if estimator == "IsolationForest":
            return -made.score_samples(x)
        if not classifier:
            return made.predict(x)
        shares = made.predict_proba(x)
        return shares[:, 1] if boosted and shares.shape[1] == 2 else shares

    @cache
    def converted() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "forest.pkl"), Path(folder, "checkpoint.tl")
            joblib.dump(made, source)
            command = [sys.executable, "-m", "engine", "convert", "sklearn", str(source), str(target)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 0, done.stderr
            return target.read_bytes()

    def save(path: Path) -> None:
        path.write_bytes(converted())

    classes = 1 if not classifier or (boosted and target == 1) else target + 1
    # treelite takes a category that it has not seen for one of no list, scikit-learn for a missing value.
    strange = "categorical_features" not in options
    return Made(expected, save, "treelite_checkpoint", classes, classifier, gaps=gaps, strange=strange)


FEW: Mapping[str, Any] = {"n_estimators": 10}
HIST: Mapping[str, Any] = {"max_iter": 10}

CASES: Mapping[str, Callable[[], Made]] = {
    "xgb_squared": lambda: xgb("reg:squarederror"),
    "xgb_squared_json": lambda: xgb("reg:squarederror", kind="xgboost_json"),
    "xgb_without_gaps": lambda: xgb("reg:squarederror", gaps=False),
    "xgb_absolute": lambda: xgb("reg:absoluteerror"),
    "xgb_huber": lambda: xgb("reg:pseudohubererror"),
    "xgb_squared_log": lambda: xgb("reg:squaredlogerror", 3),
    "xgb_gamma": lambda: xgb("reg:gamma", 3),
    "xgb_tweedie": lambda: xgb("reg:tweedie", 3),
    "xgb_quantile": lambda: xgb("reg:quantileerror", quantile_alpha=0.3),
    "xgb_poisson": lambda: xgb("count:poisson", 3),
    "xgb_cox": lambda: xgb("survival:cox", 3),
    "xgb_aft": lambda: xgb("survival:aft", 3),
    "xgb_regression_of_shares": lambda: xgb("reg:logistic", 1),
    "xgb_binary": lambda: xgb("binary:logistic", 1),
    "xgb_binary_base_score": lambda: xgb("binary:logistic", 1, base_score=0.2),
    "xgb_binary_json": lambda: xgb("binary:logistic", 1, kind="xgboost_json"),
    "xgb_hinge": lambda: xgb("binary:hinge", 1),
    "xgb_raw": lambda: xgb("binary:logitraw", 1),
    "xgb_softmax": lambda: xgb("multi:softmax", 2, num_class=3),
    "xgb_softprob": lambda: xgb("multi:softprob", 2, num_class=3),
    "xgb_softprob_of_two": lambda: xgb("multi:softprob", 1, num_class=2),
    "xgb_softprob_json": lambda: xgb("multi:softprob", 2, num_class=3, kind="xgboost_json"),
    "xgb_pairwise": lambda: xgb("rank:pairwise", 1),
    "xgb_ndcg": lambda: xgb("rank:ndcg", 1),
    "xgb_map": lambda: xgb("rank:map", 1),
    "xgb_dart": lambda: xgb("reg:squarederror", booster="dart", rate_drop=0.3, skip_drop=0.2),
    "xgb_dart_binary": lambda: xgb("binary:logistic", 1, booster="dart", rate_drop=0.3),
    "xgb_forest": lambda: xgb(
        "reg:squarederror", num_parallel_tree=6, subsample=0.7, rounds=1, learning_rate=1
    ),
    "xgb_categories": lambda: xgb("reg:squarederror", categories=True, max_cat_to_onehot=1),
    "xgb_categories_one_hot": lambda: xgb("binary:logistic", 1, categories=True, max_cat_to_onehot=99),
    "xgb_leafwise": lambda: xgb("reg:squarederror", grow_policy="lossguide", max_leaves=12, max_depth=0),
    "lgb_regression": lambda: lgb("regression"),
    "lgb_without_gaps": lambda: lgb("regression", gaps=False),
    "lgb_missing_unused": lambda: lgb("regression", use_missing=False),
    "lgb_absolute": lambda: lgb("regression_l1"),
    "lgb_huber": lambda: lgb("huber"),
    "lgb_fair": lambda: lgb("fair"),
    "lgb_quantile": lambda: lgb("quantile", alpha=0.3),
    "lgb_mape": lambda: lgb("mape", 3),
    "lgb_poisson": lambda: lgb("poisson", 3),
    "lgb_gamma": lambda: lgb("gamma", 3),
    "lgb_tweedie": lambda: lgb("tweedie", 3),
    "lgb_root": lambda: lgb("regression", reg_sqrt=True),
    "lgb_binary": lambda: lgb("binary", 1),
    "lgb_binary_steep": lambda: lgb("binary", 1, sigmoid=2.0),
    "lgb_multiclass": lambda: lgb("multiclass", 2, num_class=3),
    "lgb_one_against_all": lambda: lgb("multiclassova", 2, num_class=3),
    "lgb_cross_entropy": lambda: lgb("cross_entropy", 1),
    "lgb_cross_entropy_lambda": lambda: lgb("cross_entropy_lambda", 1),
    "lgb_lambdarank": lambda: lgb("lambdarank", 1),
    "lgb_xendcg": lambda: lgb("rank_xendcg", 1),
    "lgb_dart": lambda: lgb("regression", boosting="dart"),
    "lgb_forest": lambda: lgb("binary", 1, boosting="rf", bagging_freq=1, bagging_fraction=0.7),
    "lgb_categories": lambda: lgb("regression", categories=True),
    "lgb_categories_binary": lambda: lgb("binary", 1, categories=True),
    "lgb_categories_multiclass": lambda: lgb("multiclass", 2, categories=True, num_class=3),
    "skl_forest_of_two": lambda: skl("RandomForestClassifier", 1, **FEW),
    "skl_forest_of_three": lambda: skl("RandomForestClassifier", 2, **FEW),
    "skl_forest_with_gaps": lambda: skl("RandomForestClassifier", 2, gaps=True, **FEW),
    "skl_extra_of_two": lambda: skl("ExtraTreesClassifier", 1, **FEW),
    "skl_extra_of_three": lambda: skl("ExtraTreesClassifier", 2, **FEW),
    "skl_boosting_of_two": lambda: skl("GradientBoostingClassifier", 1, **FEW),
    "skl_boosting_of_three": lambda: skl("GradientBoostingClassifier", 2, **FEW),
    "skl_histograms_of_two": lambda: skl("HistGradientBoostingClassifier", 1, gaps=True, **HIST),
    "skl_histograms_of_three": lambda: skl("HistGradientBoostingClassifier", 2, gaps=True, **HIST),
    "skl_forest": lambda: skl("RandomForestRegressor", **FEW),
    "skl_extra": lambda: skl("ExtraTreesRegressor", **FEW),
    "skl_boosting": lambda: skl("GradientBoostingRegressor", **FEW),
    "skl_boosting_huber": lambda: skl("GradientBoostingRegressor", loss="huber", **FEW),
    "skl_histograms": lambda: skl("HistGradientBoostingRegressor", gaps=True, **HIST),
    "skl_histograms_poisson": lambda: skl(
        "HistGradientBoostingRegressor", 3, loss="poisson", gaps=True, **HIST
    ),
    "skl_histograms_gamma": lambda: skl("HistGradientBoostingRegressor", 3, loss="gamma", gaps=True, **HIST),
    "skl_histograms_categories": lambda: skl(
        "HistGradientBoostingRegressor", gaps=True, categorical_features=[CATEGORY], **HIST
    ),
    "skl_isolation": lambda: skl("IsolationForest", **FEW),
}
"""Forests by name; each is trained when it is asked for."""


def trained(name: str) -> Made:
    """Train one of `CASES`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries', about settings and each other
        return CASES[name]()


def asked(made: Made, about: str) -> Iterator[tuple[Array, Array]]:
    """Yield rows for a forest, and what its library predicts for them."""
    x = INPUTS[about](made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield x, np.asarray(made.expected(x), np.float64)
