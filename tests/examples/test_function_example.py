"""`examples/softmax.py` in its test harness; what the README shows of it is that file."""

import re
from pathlib import Path

import numpy as np

from tritium.testing import open_model

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "softmax.py"


def test_scores_become_probabilities_row_by_row():
    scores = np.array([[1, 2, 3], [1000, 1000, 1000]], np.float32)
    with open_model(EXAMPLE) as model:
        [first], [second] = model.batch([{"scores": scores[:1]}, {"scores": scores[1:]}])
    expected = np.exp([1.0, 2.0, 3.0]) / np.exp([1.0, 2.0, 3.0]).sum()
    assert np.allclose(first["probabilities"], [expected])
    assert np.allclose(second["probabilities"], 1 / 3)


def test_the_readme_shows_the_file():
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert any("tritium.model" in block and EXAMPLE.read_text().endswith("\n\n" + block) for block in shown)
