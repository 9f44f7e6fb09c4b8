"""What all tests share: how Hypothesis looks for examples, and that the long ones are left out."""

import os
import sys

from hypothesis import HealthCheck, Phase, settings

# The same examples in every run, however slow the machine: what a run finds, the next one finds again.
settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# `HYPOTHESIS_PROFILE=explore`: others each time.
settings.register_profile("explore", settings.get_profile("default"), derandomize=False)
# That there is a failure is enough, however long its story: what `python -m chaos.mutations` asks.
settings.register_profile(
    "unshrunk", settings.get_profile("default"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# Tests start hundreds of servers: each would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_modifyitems(config, items):
    """Run tests that take minutes only if their mark is selected."""
    if "soak" in str(config.getoption("markexpr")):
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
