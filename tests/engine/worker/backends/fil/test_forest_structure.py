"""What treelite would read and walk all the same: forged counts, circles, columns that are not there."""

import struct

import lightgbm
import numpy as np
import pytest
import treelite
import treelite.sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from engine.worker.backends.fil.lightgbm_text import fault_of
from engine.worker.backends.fil.structure import Structure, Unsound

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4)).astype("f4")
Y = (X[:, 0] * X[:, 1] > 0) + (X[:, 2] > 0.5).astype(int)


@pytest.fixture(scope="module")
def forest():
    return treelite.sklearn.import_model(RandomForestClassifier(3, max_depth=4, random_state=0).fit(X, Y))


@pytest.fixture(scope="module")
def lightgbm_text():
    booster = lightgbm.train({"verbose": -1, "num_leaves": 7, "num_threads": 1}, lightgbm.Dataset(X, Y), 3)
    return booster.model_to_string().encode()


def test_a_sound_forest_is_measured(forest):
    found = Structure(forest.serialize_bytes())
    assert (found.columns, found.targets, found.classes, found.trees) == (4, 1, 3, 3)
    assert found.depth() == forest.get_tree_depth().max()
    fields = [forest.get_tree_accessor(tree).get_field("num_nodes")[0] for tree in range(3)]
    assert found.nodes == sum(fields)


def copied(forest):
    return treelite.Model.deserialize_bytes(forest.serialize_bytes())


def with_field(forest, name, change, *, tree=None):
    """Serialise a copy of a forest with one field changed; of its header, or of one of its trees."""
    model = copied(forest)
    accessor = model.get_header_accessor() if tree is None else model.get_tree_accessor(tree)
    values = accessor.get_field(name).copy()
    change(values)
    accessor.set_field(name, values)
    return model.serialize_bytes()


def put(at, value):
    def change(values):
        values[at] = value

    return change


INNER = 0  # the root is a test


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("cleft", put(INNER, 0), "not in its tree"),
        ("cleft", put(INNER, 99), "not in its tree"),
        ("cright", put(INNER, -7), "not in its tree"),
        ("cright", put(INNER, 1), "two parents"),
        ("cleft", put(INNER, -1), "neither a leaf nor a test"),
        ("node_type", put(INNER, 3), "neither a leaf nor a test"),
        ("node_type", put(INNER, 0), "neither a leaf nor a test"),
        ("split_index", put(INNER, 4), "a column that is not among its 4"),
        ("split_index", put(INNER, -2), "a column that is not among its 4"),
        ("cmp", put(INNER, 9), "a test without a comparison"),
        ("leaf_vector_end", put(-1, 1 << 40), "values that are not there"),
        ("leaf_vector_begin", put(INNER, 1 << 40), "values that are not there"),
        ("leaf_vector_begin", lambda values: values.__isub__(values[-1] * 0 + (values > 0)), "another width"),
        ("category_list_end", put(INNER, 5), "categories that are not there"),
    ],
)  # fmt: skip
def test_a_damaged_tree_is_refused(forest, name, change, text):
    with pytest.raises(Unsound, match=text):
        Structure(with_field(forest, name, change, tree=1))


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("num_class", put(0, 0), "make no sense"),
        ("num_class", put(0, 1 << 30), "make no sense"),
        ("num_class", put(0, 2), "leaves are of a shape"),
        ("num_feature", put(0, 0), "make no sense"),
        ("num_target", put(0, 2), "make no sense"),
        ("target_id", put(0, 1), "targets or classes that it does not have"),
        ("class_id", put(0, 3), "targets or classes that it does not have"),
        ("class_id", put(0, -2), "targets or classes that it does not have"),
        ("leaf_vector_shape", put(0, 5), "leaves are of a shape"),
    ],
)
def test_a_damaged_header_is_refused(forest, name, change, text):
    with pytest.raises(Unsound, match=text):
        Structure(with_field(forest, name, change))


def patched(raw, at, form, value):
    return raw[:at] + struct.pack(form, value) + raw[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("at", "form", "value", "text"),
    [
        (0, "<i", 5, "version 5"),
        (12, "<B", 9, "no known type"),
        (14, "<Q", 0, "no trees"),
        (14, "<Q", 1 << 50, "cut short"),
    ],
)
def test_a_forged_beginning_is_refused(forest, at, form, value, text):
    with pytest.raises(Unsound, match=text):
        Structure(patched(forest.serialize_bytes(), at, form, value))


def bases(forest):
    """Return where the base scores are in a serialised forest, and where their end is."""
    raw = forest.serialize_bytes()
    scores = np.asarray(forest.get_header_accessor().get_field("base_scores"))
    start = raw.index(struct.pack("<Q", scores.size) + scores.tobytes())
    return start, start + 8 + scores.nbytes


def additions(forest):
    """Return where the count is of what newer treelites add to a model; the first tree is behind it."""
    _, end = bases(forest)
    (attributes,) = struct.unpack_from("<Q", forest.serialize_bytes(), end)
    return end + 8 + attributes


def test_a_number_of_base_scores_of_its_own_is_refused(forest):
    raw, (start, end) = forest.serialize_bytes(), bases(forest)
    with pytest.raises(Unsound, match="base scores"):
        Structure(raw[:start] + struct.pack("<Qdd", 2, 0, 0) + raw[end:])


def test_what_a_newer_treelite_adds_is_refused(forest):
    with pytest.raises(Unsound, match="newer treelite"):
        Structure(patched(forest.serialize_bytes(), additions(forest), "<i", 1))


def test_what_follows_the_last_tree_is_refused(forest):
    with pytest.raises(Unsound, match="goes on"):
        Structure(forest.serialize_bytes() + b"\0")


def test_statistics_of_other_nodes_are_refused(forest):
    raw = forest.serialize_bytes()
    (nodes,) = forest.get_tree_accessor(2).get_field("num_nodes")
    # Behind the last tree's last list, which says which nodes have gains, are the two counts of extensions.
    at = len(raw) - 8 - int(nodes) - 8
    assert struct.unpack_from("<Q", raw, at) == (nodes,)
    with pytest.raises(Unsound, match="one length"):
        Structure(patched(raw, at, "<Q", int(nodes) - 1))


def test_a_tree_of_one_leaf_is_sound():
    alike = treelite.sklearn.import_model(RandomForestClassifier(1).fit(X, np.zeros(len(X))))
    assert Structure(alike.serialize_bytes()).nodes == 1


def test_a_tree_without_nodes_is_refused(forest):
    raw = forest.serialize_bytes()
    place = additions(forest) + 4
    for count in (0, -1, 1 << 30):
        with pytest.raises(Unsound, match=r"without nodes|cut short"):
            Structure(patched(raw, place, "<i", count))
    with pytest.raises(Unsound, match=r"one length|cut short"):
        Structure(patched(raw, place + 5, "<Q", 1))


def test_leaves_of_several_values_are_those_of_all_trees(forest):
    values, begins = Structure(forest.serialize_bytes()).tables.leaf_vectors("<f8")
    of_trees = [forest.get_tree_accessor(tree).get_field("leaf_vector") for tree in range(3)]
    assert [*begins] == [0, of_trees[0].size, of_trees[0].size + of_trees[1].size]
    assert np.array_equal(values, np.concatenate(of_trees))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_change_of_bytes_is_anything_but_sound_or_unsound(forest, data):
    raw = bytearray(forest.serialize_bytes())
    del raw[data.draw(st.integers(0, len(raw))) if data.draw(st.booleans()) else len(raw) :]
    for at in data.draw(st.lists(st.integers(0, max(0, len(raw) - 1)), max_size=4)):
        raw[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
    try:
        found = Structure(bytes(raw))
    except Unsound:
        return
    assert 0 <= found.depth() < found.nodes


# -- LightGBM


def test_a_sound_text_has_no_fault(lightgbm_text):
    assert fault_of(lightgbm_text) == ""


def test_a_tree_of_one_leaf_has_no_fault():
    booster = lightgbm.train({"verbose": -1, "num_threads": 1}, lightgbm.Dataset(X, np.ones(200)), 2)
    assert fault_of(booster.model_to_string().encode()) == ""


def test_a_text_without_trees_has_no_fault():
    assert fault_of(b"tree\nversion=v4\n\nend of trees\n") == ""


def test_a_damaged_tree_is_found_behind_one_of_one_leaf(lightgbm_text):
    first, grown, rest = lightgbm_text.partition(b"num_leaves=7")
    assert grown
    damaged = first + b"num_leaves=1" + rest.replace(b"num_leaves=7", b"num_leaves=", 1)
    assert "its tree 1 has no sound list" in fault_of(damaged)


def test_a_text_that_is_cut_short_has_too_few_trees(lightgbm_text):
    assert (
        fault_of(lightgbm_text[: lightgbm_text.index(b"Tree=2")]) == "it should have 3 trees, and 2 are there"
    )
    assert "no end" in fault_of(lightgbm_text[: lightgbm_text.index(b"end of trees")])


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        (b"left_child", b"0 2 3 4 5 -1", "not below it"),
        (b"left_child", b"1 99 3 4 5 -1", "not below it"),
        (b"right_child", b"-99 -3 -4 -5 -6 -7", "not below it"),
        (b"left_child", b"1", "not of one length"),
        (b"left_child", b"", "not of one length"),
        (b"left_child", b"- 1", "no sound list"),
        (b"left_child", b"99999999999999999999 1", "no sound list"),
        (b"left_child", b"1  2 3 4 5 -1", "no list of numbers"),
        (b"num_leaves", b"", "no sound list"),
        (b"decision_type", b"2 2 6 2 2 2", "zero_as_missing"),
    ],
)
def test_a_damaged_text_is_refused(lightgbm_text, field, value, text):
    start = lightgbm_text.index(b"\n" + field + b"=") + len(field) + 2
    stop = lightgbm_text.index(b"\n", start)
    assert text in fault_of(lightgbm_text[:start] + value + lightgbm_text[stop:])


def test_a_tree_without_its_lists_is_refused(lightgbm_text):
    assert "no sound list" in fault_of(lightgbm_text.replace(b"left_child=", b"left_kid="))
