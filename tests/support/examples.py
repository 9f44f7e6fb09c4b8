"""How many examples Hypothesis makes: few at every push, all of them in a search for unknown defects."""

import os


def examples(most: int) -> int:
    """Return how many examples a test takes that would take `most` where there is time for them.

    That is where `HYPOTHESIS_PROFILE` names a profile of `tests/conftest.py`.
    """
    return most if "HYPOTHESIS_PROFILE" in os.environ else min(most, 25)
