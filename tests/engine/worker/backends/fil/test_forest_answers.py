"""From scores to answers: classes, probabilities and shapes, as Triton's FIL backend gives them."""

import numpy as np
import pytest

from engine.worker.backends.fil.answers import ShapeMismatch, answer_for, squeezed
from engine.worker.backends.fil.parameters import read

ONE = np.array([[0.2], [0.5], [0.9]])
TWO = np.concatenate([1 - ONE, ONE], axis=1)
THREE = np.array([[0.1, 0.2, 0.7], [-3, -1, -2], [0.4, 0.4, 0.2]], "f4")


def options(*, classifier, probabilities=False, threshold="0.5"):
    return read(
        {
            "is_classifier": str(classifier).lower(),
            "predict_proba": str(probabilities).lower(),
            "threshold": threshold,
        }
    )


@pytest.mark.parametrize(
    ("dims", "row"), [([1], []), ([3], [3]), ([1, 3], [3]), ([2, 1, 3], [2, 3]), ([], [])]
)
def test_every_1_of_a_shape_is_dropped(dims, row):
    assert squeezed(dims) == row


@pytest.mark.parametrize(
    ("asked", "scores", "dims", "answer"),
    [
        (options(classifier=False), ONE, [1], ONE[:, 0]),
        (options(classifier=False), THREE, [3], THREE),
        (options(classifier=True), ONE, [1], [0, 0, 1]),
        (options(classifier=True, threshold="0.1"), ONE, [1], [1, 1, 1]),
        (options(classifier=True), TWO, [1], [0, 0, 1]),
        (options(classifier=True), THREE, [1], [2, 1, 0]),
        (options(classifier=True, probabilities=True), ONE, [1], ONE[:, 0]),
        (options(classifier=True, probabilities=True), ONE, [2], TWO),
        (options(classifier=True, probabilities=True), TWO, [1], ONE[:, 0]),
        (options(classifier=True, probabilities=True), TWO, [2], TWO),
        (options(classifier=True, probabilities=True), THREE, [3], THREE),
    ],
)
def test_answers_are_those_of_the_contract(asked, scores, dims, answer):
    made = answer_for(asked, scores.shape[1], dims)(scores)
    assert made.dtype == np.float32
    assert made.shape == np.shape(answer)
    np.testing.assert_allclose(made, answer, rtol=1e-6)


@pytest.mark.parametrize(
    ("asked", "classes", "dims", "wanted"),
    [
        (options(classifier=False), 1, [2], "gives [1] but the configuration makes [2]"),
        (options(classifier=False), 1, [-1], "gives [1] but the configuration makes [-1]"),
        (options(classifier=True), 3, [3], "gives [1] but the configuration makes [3]"),
        (options(classifier=True, probabilities=True), 1, [3], "gives [1] or [2] but"),
        (options(classifier=True, probabilities=True), 3, [1], "gives [3] but"),
        (options(classifier=False), 1, [], "gives [1] but the configuration makes []"),
    ],
)
def test_a_shape_that_the_model_does_not_give_is_refused(asked, classes, dims, wanted):
    with pytest.raises(ShapeMismatch) as refused:
        answer_for(asked, classes, dims)
    assert wanted in str(refused.value)
