"""A model's specification: what of it tells models apart."""

from pathlib import Path

import pytest

from actors.values.specs import Direct, LanguageServing, ModelKey
from tests.support.model_doubles import make_spec


@pytest.mark.parametrize("namespace", ["", "/models/team"])
def test_versions_of_a_model_share_its_key_and_other_namespaces_do_not(namespace):
    one, two = (make_spec(name="add", version=version, namespace=namespace) for version in (1, 2))
    assert one.key == two.key == ModelKey("add", namespace)
    assert one.key != make_spec(name="add", namespace="elsewhere").key


def test_a_workers_files_are_also_those_of_the_weights_it_is_told_of():
    serving = [Direct(), LanguageServing(), LanguageServing(weights=Path("/weights"))]
    specs = [make_spec(name="add", scheduling=each) for each in serving]
    (own,) = specs[0].directories
    assert [list(each.directories) for each in specs] == [[own], [own], [own, Path("/weights")]]


def test_a_model_without_states_has_the_outputs_that_are_declared():
    spec = make_spec(name="add")
    assert spec.backend_outputs == spec.outputs
