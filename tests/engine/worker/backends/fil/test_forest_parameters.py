"""Parameters of forests: honoured, told of, or refused in Triton's words."""

import pytest

from engine.worker.backends.base import LoadError
from engine.worker.backends.fil.parameters import FILES, default_file, read

PLAIN = {"is_classifier": "true"}


def test_what_is_not_written_is_as_triton_documents_it():
    options = read(PLAIN)
    assert (options.model_type, options.threshold, options.probabilities) == ("xgboost", 0.5, False)
    assert (options.unknown_fields, options.threads, options.compiling, options.notes) == (
        False,
        None,
        "auto",
        (),
    )


@pytest.mark.parametrize("kind", FILES)
def test_each_type_has_its_file(kind):
    assert default_file({"model_type": kind}) == FILES[kind]
    assert read({**PLAIN, "model_type": kind}).model_type == kind


def test_without_a_type_the_file_is_xgboosts_and_of_an_unknown_one_there_is_none():
    assert default_file({}) == "xgboost.model"
    assert default_file({"model_type": "x"}) == ""


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"model_type": "onnx"}, "onnx not recognized as a valid serialization format."),
        ({}, "Required parameter is_classifier not found in config"),
        ({"output_class": "maybe"}, "Required parameter is_classifier not found in config"),
        ({"is_classifier": "1"}, "Expected 'true' or 'false' for parameter 'is_classifier', got: '1'"),
        (
            {**PLAIN, "predict_proba": "True"},
            "Expected 'true' or 'false' for parameter 'predict_proba', got: 'True'",
        ),
        (
            {**PLAIN, "xgboost_allow_unknown_field": "on"},
            "Expected 'true' or 'false' for parameter 'xgboost_allow_unknown_field', got: 'on'",
        ),
        ({**PLAIN, "threshold": "half"}, "Bad input for parameter threshold"),
        ({**PLAIN, "layout": "round"}, "Unknown nvForest layout name: round"),
    ],
)
def test_what_can_not_be_meant_is_refused_in_tritons_words(parameters, text):
    with pytest.raises(LoadError) as refused:
        read(parameters)
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(
    ("text", "number"), [("0.7", 0.7), (" 1e-3", 1e-3), (".25x", 0.25), ("-2", -2), ("1.", 1)]
)
def test_a_number_may_have_something_behind_it(text, number):
    assert read({**PLAIN, "threshold": text}).threshold == number


@pytest.mark.parametrize(("text", "threads"), [("2", 2), ("-1", None), ("0", None), ("3 of them", 3)])
def test_threads_are_as_many_as_written_or_the_workers_share(text, threads):
    options = read({**PLAIN, "cpu_nthread": text})
    assert (options.threads, options.notes) == (threads, ())


def test_threads_that_are_no_number_are_told_of():
    options = read({**PLAIN, "cpu_nthread": "all"})
    assert options.threads is None
    assert "cpu_nthread" in options.notes[0]


@pytest.mark.parametrize(
    "key", ["algo", "threads_per_tree", "storage_type", "blocks_per_sm", "use_experimental_optimizations"]
)
def test_removed_parameters_are_told_of(key):
    [note] = read({**PLAIN, key: "1"}).notes
    assert f"'{key}' was removed" in note


@pytest.mark.parametrize("key", ["chunk_size", "transfer_threshold"])
def test_parameters_of_gpus_are_told_of(key):
    [note] = read({**PLAIN, key: "8"}).notes
    assert f"'{key}' is about GPUs" in note
    assert "'layout' is about GPUs" in read({**PLAIN, "layout": "layered"}).notes[0]


@pytest.mark.parametrize(("old", "classifier"), [("true", True), ("false", False)])
def test_the_old_name_wins_and_is_told_of(old, classifier):
    options = read({"is_classifier": "true", "output_class": old})
    assert options.classifier is classifier
    assert "old name" in options.notes[0]


def test_an_old_name_that_says_nothing_is_told_of_as_removed():
    assert "'output_class' was removed" in read({**PLAIN, "output_class": "int"}).notes[0]


def test_all_is_read_together():
    options = read(
        {
            "model_type": "lightgbm",
            "is_classifier": "false",
            "predict_proba": "true",
            "xgboost_allow_unknown_field": "true",
            "tritium.fil.compile": "off",
        }
    )
    assert (options.classifier, options.probabilities, options.unknown_fields) == (False, True, True)
    assert options.compiling == "off"
