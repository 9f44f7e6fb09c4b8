"""Alarm: nothing to train; the model learns what is usual for each pump while it serves."""

NEEDS = {}


def make(repository, say):
    """Leave it as it is."""
    return "a watchman, in one Python file; the server keeps his notes"
