"""What tests of supervisors begin with."""

import pytest

from tests.support.trees import Puppet


@pytest.fixture
def a():
    return Puppet("a")


@pytest.fixture
def b():
    return Puppet("b")
