"""How many examples Hypothesis makes: few at every push, all of them in a search for unknown defects."""

import os


def examples(most: int, *, few: int = 8) -> int:
    """Return the number of examples for a test that makes `most` if there is time for them.

    There is time where `HYPOTHESIS_PROFILE` names a profile of `tests/conftest.py`; with `few`, for so many.
    """
    profile = os.environ.get("HYPOTHESIS_PROFILE", "")
    return min(most, {"": 25, "few": few}.get(profile, most))
