"""Morse: nothing to train; the model is its `model.py`."""

NEEDS = {}


def make(repository, say):
    """Leave it as it is."""
    return "a listener, in one Python file"
