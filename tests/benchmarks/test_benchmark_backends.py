"""The benchmark of backends: one model for every framework, and figures that are those of a row."""

import numpy as np
import pytest

from benchmarks.backends.__main__ import HEAD, Alone, Figures
from benchmarks.backends.frameworks import FRAMEWORKS, WIDTH, weights


@pytest.mark.slow
@pytest.mark.parametrize("backend", FRAMEWORKS)
def test_every_framework_computes_the_same_model(tmp_path, backend):
    if backend == "tensorflow":  # in an environment of its own: `python -m tests.long tensorflow`
        pytest.importorskip("tensorflow")
    framework = FRAMEWORKS[backend]
    framework.write(tmp_path)
    x = np.random.default_rng(1).normal(size=(3, WIDTH)).astype("f4")
    expected = x
    for each in weights():
        expected = np.maximum(expected @ each, 0)
    np.testing.assert_allclose(framework.load(tmp_path, 1)(x), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.system
@pytest.mark.slow
def test_a_framework_by_itself_tells_its_cpu_time(tmp_path):
    framework = FRAMEWORKS["onnxruntime"]
    framework.write(tmp_path)
    with Alone(framework, tmp_path, 1) as bare:
        assert bare.loaded["cpu"] > 0
        assert bare.cpu(3, 64) > 0


def test_a_row_has_the_median_ratio_of_neighbouring_rounds():
    figures = Figures(
        backend="mine",
        cpu=[(0.004, 0.002), (0.002, 0.002), (0.003, 0.002)],
        load=(10.0, 20.0),
        memory=(200 << 20, 190 << 20),
    )
    assert figures.line().split() == [
        *("mine", "3.000", "2.000", "1.500"),
        *("1.000", "2.000", "0.50"),
        *("200.0", "190.0", "+10.0"),
    ]
    assert len(HEAD.splitlines()[1].split()) == len(figures.line().split())
