"""A version directory for TensorFlow's models."""

import pytest


@pytest.fixture
def version(tmp_path):
    """An empty `model/1`."""
    directory = tmp_path / "model" / "1"
    directory.mkdir(parents=True)
    return directory
