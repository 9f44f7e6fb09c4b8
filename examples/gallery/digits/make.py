"""Digits: the small network of `examples/models`, which `examples/build_models.py` has trained."""

import shutil
from pathlib import Path

EXAMPLES = Path(__file__).parents[2]
NEEDS = {"onnxruntime": "pip install -e '.[onnx]'"}


def make(repository, say):
    """Copy the model."""
    shutil.copytree(EXAMPLES / "models" / "digits_onnx", repository / "digits_onnx")
    return "a network of 64, 32 and 10, as it lies in examples/models"
