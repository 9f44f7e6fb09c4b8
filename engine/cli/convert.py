"""`tritium convert`: models into forms that a server can load without running what is in them."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from engine.observability.text import printable
from engine.settings.extras import how_to_install, is_missing
from engine.worker.backends.fil.parameters import INPUT, OUTPUT

_DESCRIPTION: Final = """\
Make a treelite checkpoint of a scikit-learn forest, for the backend `fil`.

IN is a pickle, as `pickle` or `joblib` write it. LOADING A PICKLE RUNS THE CODE IN IT, with your rights:
convert only files of people whose programs you would run. Servers load no pickles. The checkpoint OUT holds
numbers only.

RandomForest, ExtraTrees, GradientBoosting and HistGradientBoosting, each Classifier and Regressor, and
IsolationForest are converted. The checkpoint is written only if it predicts what the forest does.
"""

_EPILOG: Final = """\
It needs scikit-learn, in the version that wrote the pickle, joblib and treelite.

example:
  tritium convert sklearn forest.joblib models/forest/1/checkpoint.tl
"""

_ROWS: Final = 256  # that are compared
_TOLERANCE: Final = 1e-5
_NEEDED: Final = ("sklearn", "joblib", "treelite")


class _Failed(Exception):
    """The command can't be carried out. The message is for its user."""


def convert_parser() -> argparse.ArgumentParser:
    """Return the parser of its command line."""
    parser = argparse.ArgumentParser(
        prog="tritium convert",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("library", choices=["sklearn"], help="the library that wrote IN")
    parser.add_argument("source", metavar="IN", type=Path, help="a pickle of a trained forest")
    parser.add_argument("target", metavar="OUT", type=Path, help="the checkpoint to write")
    return parser


def convert(argv: Sequence[str]) -> int:
    """Convert one model; return the process's exit status."""
    options = convert_parser().parse_args(argv)
    try:
        _convert(options.source, options.target)
    except _Failed as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _convert(source: Path, target: Path) -> None:
    missing = [package for package in _NEEDED if is_missing(package)]
    if missing:
        names = ", ".join("scikit-learn" if package == "sklearn" else package for package in missing)
        raise _Failed(f"not installed: {names}; pip install scikit-learn && {how_to_install('fil')}")
    if not source.is_file():
        raise _Failed(f"{printable(str(source))} is no file: name the pickle of a forest")
    sys.stderr.write(f"loading {printable(str(source))}: this runs the code that is in it\n")
    forest = _loaded(source)
    model = _imported(forest)
    _compare(forest, model)
    _write(target, model.serialize_bytes())
    sys.stdout.write(
        f"{printable(str(target))}: {model.num_tree} trees of a {type(forest).__name__},"
        f" {model.num_feature} columns\n{_classes_of(forest)}{_configuration(forest, model)}"
    )


def _loaded(source: Path) -> Any:
    import joblib

    try:
        return joblib.load(source)
    except Exception as error:  # a pickle may raise anything
        said = f"{type(error).__name__}: {error}"
        raise _Failed(f"{printable(str(source))} can't be loaded: {printable(said)}") from error


def _imported(forest: Any) -> Any:
    import treelite

    kind = type(forest).__name__
    if hasattr(forest, "steps"):
        raise _Failed(
            f"it is a {kind}: convert its last step, and do what the others do in a Python model before it"
        )
    try:
        model = treelite.sklearn.import_model(forest)
    except Exception as error:  # treelite reaches into the object, which may be anything
        text = " ".join(str(error).split()) or type(error).__name__
        raise _Failed(f"a {kind} can't be converted: {text}") from error
    outputs = getattr(forest, "n_outputs_", 1)
    if outputs > 1:
        raise _Failed(
            f"it has {outputs} outputs, and backend 'fil' serves one: Multi-target model not supported"
        )
    return model


def _compare(forest: Any, model: Any) -> None:
    """Raise _Failed if the checkpoint would not give what the forest gives."""
    import numpy as np
    import treelite

    rng = np.random.default_rng(0)
    count = int(model.num_feature)
    x = (rng.normal(size=(_ROWS, count)) * 10.0 ** rng.integers(-1, 4, (_ROWS, count))).astype(np.float32)
    categorical = getattr(forest, "is_categorical_", None)
    if categorical is not None:
        x[:, categorical] = rng.integers(0, 12, (_ROWS, int(categorical.sum())))
    try:
        if hasattr(forest, "predict_proba"):
            expected = forest.predict_proba(x)
        elif hasattr(forest, "score_samples"):
            expected = -forest.score_samples(x)
        else:
            expected = forest.predict(x)
    except Exception as error:  # an estimator that is not fitted, or a foreign object
        raise _Failed(f"the forest does not predict: {' '.join(str(error).split())}") from error
    scores = treelite.gtil.predict(model, x).reshape(_ROWS, -1)
    expected = np.asarray(expected, np.float64).reshape(_ROWS, -1)
    if scores.shape[1] == 1 and expected.shape[1] == 2:
        expected = expected[:, 1:]
    if scores.shape != expected.shape or not np.allclose(scores, expected, rtol=_TOLERANCE, atol=1e-7):
        raise _Failed("treelite's answers differ from the forest's; nothing was written")


def _classes_of(forest: Any) -> str:
    names = getattr(forest, "classes_", None)
    if names is None:
        return ""
    told = ", ".join(f"{at} is {printable(str(name))}" for at, name in enumerate(names))
    return f"classes: {told}\n"


def _configuration(forest: Any, model: Any) -> str:
    classifier = hasattr(forest, "classes_")
    width = len(forest.classes_) if classifier else 1
    parameters = {"model_type": "treelite_checkpoint", "is_classifier": str(classifier).lower()}
    if classifier:
        parameters["predict_proba"] = "true"
    return "\n".join(
        [
            "config.pbtxt:",
            '  backend: "fil"',
            "  max_batch_size: 1024",
            f'  input {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ {model.num_feature} ] }}',
            f'  output {{ name: "{OUTPUT}" data_type: TYPE_FP32 dims: [ {width} ] }}',
            *(
                f'  parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
                for key, value in parameters.items()
            ),
            "",
        ]
    )


def _write(target: Path, content: bytes) -> None:
    """Write the checkpoint whole or not at all."""
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        aside.write_bytes(content)
        os.replace(aside, target)
    except OSError as error:
        raise _Failed(f"{printable(str(target))} can't be written: {error.strerror or error}") from None
    finally:
        aside.unlink(missing_ok=True)
