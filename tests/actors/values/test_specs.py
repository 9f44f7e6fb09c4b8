"""A model's specification: what of it tells models apart."""

import pytest

from actors.values.specs import ModelKey
from tests.support.model_doubles import make_spec


@pytest.mark.parametrize("namespace", ["", "/models/team"])
def test_versions_of_a_model_share_its_key_and_other_namespaces_do_not(namespace):
    one, two = (make_spec(name="add", version=version, namespace=namespace) for version in (1, 2))
    assert one.key == two.key == ModelKey("add", namespace)
    assert one.key != make_spec(name="add", namespace="elsewhere").key
