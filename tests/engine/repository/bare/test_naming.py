"""Names of models that had none: valid, all different, and from the folder where a file says nothing."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.repository.bare.policy.naming import distinct, wished_name


@pytest.mark.parametrize(
    ("stem", "folder", "name"),
    [
        ("resnet50", "exports", "resnet50"),
        ("ResNet-50 (final)", "exports", "ResNet-50_final"),
        ("model", "fraud", "fraud"),
        ("Model", "fraud", "fraud"),
        ("7", "digits", "digits"),
        ("модель", "exports", "model"),
        ("model", "", "model"),
        ("", "", "model"),
    ],
)
def test_a_model_is_called_as_its_file_or_as_its_folder(stem, folder, name):
    assert wished_name(stem, folder) == name


def test_models_of_one_name_are_told_apart():
    wishes = [("a", "onnx"), ("A", "pt2"), ("b", "onnx"), ("a", "onnx"), ("a_onnx_2", "pt2")]
    assert distinct(wishes) == ["a_onnx", "A_pt2", "b", "a_onnx_3", "a_onnx_2"]


@given(
    wishes=st.lists(st.tuples(st.text("abAB_1", min_size=1, max_size=3), st.sampled_from(["onnx", "pt2"])))
)
def test_all_names_differ(wishes):
    names = distinct(wishes)
    assert len({name.lower() for name in names}) == len(wishes)


@given(stem=st.text(), folder=st.text())
def test_all_names_are_valid(stem, folder):
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,100}", wished_name(stem, folder))
