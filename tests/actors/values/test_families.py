"""`actors.values.families`: how samples become series."""

from typing import Any

from actors.values.families import (
    UNLABELLED,
    Family,
    Labels,
    Series,
    Slice,
    SplitFamily,
    blocks,
    by,
    model_labels,
    once,
)

AGE: Any = Family("age", "gauge", "How old it is.", lambda sample: sample["age"])
SHARES: Any = SplitFamily("share", "counter", "By part.", lambda sample: by("part", sample["parts"].items()))


def test_labels_are_put_into_words_in_the_order_of_their_names():
    labels = Labels({"version": "1", "model": 'a"\\\n'})
    assert labels.text == r'{model="a\"\\\n",version="1"}'
    assert labels.also(None) is labels
    assert labels.also({"part": "x"}).named == {"version": "1", "model": 'a"\\\n', "part": "x"}
    assert UNLABELLED.text == ""


def test_a_family_has_a_series_for_each_sample_that_has_a_value():
    labels = Labels({"model": "m"})
    block = AGE.block([(labels, {"age": 3}), (labels, {"age": None})])
    assert (block.name, block.kind, block.help) == ("age", "gauge", "How old it is.")
    assert block.series == [Series(labels, 3)]


def test_a_split_family_has_several_series_a_sample():
    sample = {"age": 1, "parts": {"one": 2, "other": 3}}
    age, shares = once([AGE, SHARES], sample)
    assert [(each.labels.named, each.value) for each in shares.series] == [
        ({"part": "one"}, 2),
        ({"part": "other"}, 3),
    ]
    assert age.series == [Series(UNLABELLED, 1)]
    assert Slice(1).labels is None
    assert [block.series for block in blocks([AGE], [])] == [[]]


def test_a_version_is_labelled_by_its_model_number_and_namespace():
    assert model_labels("m") == {"model": "m"}
    assert model_labels("m", "/a", 2) == {"model": "m", "version": "2", "namespace": "/a"}
