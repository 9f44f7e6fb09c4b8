"""How many examples Hypothesis makes: few at every push, all of them in a search for unknown defects."""

import os


def examples(most: int) -> int:
    """Return the number of examples for a test that makes `most` if there is time for them.

    There is time where `HYPOTHESIS_PROFILE` names a profile of `tests/conftest.py`.
    """
    return most if "HYPOTHESIS_PROFILE" in os.environ else min(most, 25)
